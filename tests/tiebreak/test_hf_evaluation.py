"""`tiebreak.hf.evaluate` against `Trainer.evaluate` itself."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

import tiebreak
from tests.tiebreak.hf_cases import encoded
from tests.tiebreak.hf_scripts import plain
from tiebreak import ConfigurationError
from tiebreak.api.certification.certificates import verify
from tiebreak.api.certification.folders import SCORES


def trainer(folder: Path, **more: Any) -> Trainer:
    return plain(folder, eval_dataset=encoded(7), per_device_eval_batch_size=3, max_steps=2, **more)


def test_evaluation_gives_the_loss_of_trainer_and_a_certificate(tmp_path: Path) -> None:
    """With batches of other widths and a short last one."""
    ours, theirs = trainer(tmp_path / "ours"), trainer(tmp_path / "theirs")
    modes = [module.training for module in ours.model.modules()]
    expected, found = theirs.evaluate(), tiebreak.hf.evaluate(ours)
    assert found.keys() <= expected.keys()
    assert found["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-6)
    assert ours.state.log_history[-1]["eval_loss"] == found["eval_loss"]
    assert [module.training for module in ours.model.modules()] == modes
    assert all(parameter.requires_grad for parameter in ours.model.parameters())
    assert "evaluation_scores" not in ours.model.state_dict()
    scores = tmp_path / "ours" / "eval-0" / "scores"
    ours.model.save_pretrained(tmp_path / "model")
    signed, shown = verify(scores, scores / "certificate.json", base=tmp_path / "model")
    assert [*shown.files] == [SCORES]
    assert signed.is_evaluation
    with torch.no_grad():
        next(iter(ours.model.parameters())).add_(1)
    again = tiebreak.hf.evaluate(ours, encoded(5), "other")
    assert again["other_loss"] == pytest.approx(theirs.evaluate(encoded(5))["eval_loss"], rel=0.5)
    assert (tmp_path / "ours" / "other-0" / "scores" / SCORES).is_file()
    with pytest.raises(ConfigurationError, match="other weights at the beginning"):
        tiebreak.hf.evaluate(ours)


def test_metrics_in_python_are_refused(tmp_path: Path) -> None:
    measured: Any = trainer(tmp_path)
    measured.compute_metrics = lambda _: {"right": 1.0}
    with pytest.raises(ConfigurationError, match="compute_metrics"):
        tiebreak.hf.evaluate(measured)
