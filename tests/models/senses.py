"""Models of images and sounds, and the table of all families."""

from collections.abc import Callable

import torch

from models.measure import SIZE, TRANSLATOR, VOCABULARY, Batch, Family, model
from models.text import text_families

SIZE = {**SIZE, "initializer_range": 0.2}  # as large as trained weights are
IMAGES = {"image_size": 8, "patch_size": 4, "num_labels": 6}
CONVNEXT = {"num_stages": 2, "hidden_sizes": [16, 32], "depths": [1, 1]}
CONVNEXT |= {"layer_scale_init_value": 0.5, "initializer_range": 0.2}
WHISPER = {**VOCABULARY, **TRANSLATOR, "num_mel_bins": 8, "decoder_start_token_id": 1}
WHISPER |= {"max_source_positions": 5, "max_target_positions": 12, "init_std": 0.2}
WAV2VEC2 = {**SIZE, "vocab_size": 12, "num_labels": 6, "classifier_proj_size": 32}
WAV2VEC2 |= {"conv_dim": (32, 32), "conv_kernel": (8, 3), "conv_stride": (4, 2)}
WAV2VEC2 |= {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4}
WAV2VEC2 |= {"num_conv_pos_embedding_groups": 2}


def images(seed: int, count: int, classes: range) -> Callable[[], Batch]:
    def feed() -> Batch:
        draw = torch.Generator().manual_seed(seed)
        labels = torch.arange(count) % len(classes) + classes.start
        return {"pixel_values": torch.randn(count, 3, 8, 8, generator=draw), "labels": labels}

    return feed


def speech(seed: int, count: int, low: int, high: int) -> Callable[[], Batch]:
    """Spectra, and random tokens that are said in them."""

    def feed() -> Batch:
        draw = torch.Generator().manual_seed(seed)
        said, labels = (torch.randint(low, high, (count, 5), generator=draw) for _ in range(2))
        spectra = torch.randn(count, 8, 10, generator=draw)
        return {"input_features": spectra, "decoder_input_ids": said, "labels": labels}

    return feed


def waves(seed: int, count: int, classes: range) -> Callable[[], Batch]:
    """A tone each: windows of eight samples are then in two directions, and leave room."""

    def feed() -> Batch:
        draw = torch.Generator().manual_seed(seed)
        tones, phases = torch.rand(2, count, 1, generator=draw) * 3
        labels = torch.arange(count) % len(classes) + classes.start
        return {"input_values": 2 * torch.sin(tones * torch.arange(48) + phases), "labels": labels}

    return feed


def sense_families() -> list[Family]:
    seen = images(0, 2, range(3)), images(1, 6, range(3, 6))
    heard = waves(0, 2, range(3)), waves(1, 6, range(3, 6))
    said = speech(0, 2, 3, 40), speech(1, 4, 20, 60)
    dino = model("Dinov2ForImageClassification", "Dinov2Config", mlp_ratio=2, **SIZE, **IMAGES)
    convnext = model("ConvNextForImageClassification", "ConvNextConfig", **CONVNEXT, **IMAGES)
    whisper = model("WhisperForConditionalGeneration", "WhisperConfig", **WHISPER)
    wav2vec = model("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", **WAV2VEC2)
    return [
        Family("ViT", model("ViTForImageClassification", "ViTConfig", **SIZE, **IMAGES), *seen),
        Family("DINOv2", dino, *seen),
        Family("ConvNeXt", convnext, *seen),
        Family("Whisper", whisper, *said),
        Family("wav2vec2", wav2vec, *heard),
    ]


FAMILIES = [*text_families(), *sense_families()]  # in the order of the page
BY_NAME = {family.name: family for family in FAMILIES}
