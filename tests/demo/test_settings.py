import pytest

from segue.demo.model import ModelSize
from segue.demo.settings import AdapterSettings, Kill, ProcessSettings, Role, RunSettings


@pytest.mark.parametrize("kill", [None, Kill(7), Kill(9, "commit")])
@pytest.mark.parametrize("text", [None, "/some/file"])
def test_settings_come_through_a_file_unchanged(tmp_path, kill, text):
    run = RunSettings(text=text, seed=3, num_microbatches=48, model=ModelSize(width=8, dropout=0.3))
    settings = ProcessSettings(Role.SEGUE, str(tmp_path), run, kill)
    settings.write(tmp_path / "settings")
    assert ProcessSettings.read(tmp_path / "settings") == settings


@pytest.mark.parametrize("adapter", [None, AdapterSettings("/some/base", rank=3, scale=0.1)])
def test_the_settings_of_a_run_come_through_a_file_unchanged(tmp_path, adapter):
    run = RunSettings(seed=3, model=ModelSize(width=8, dropout=0.3), adapter=adapter)
    run.write(tmp_path / "settings")
    assert RunSettings.read(tmp_path / "settings") == run
    settings = ProcessSettings(Role.SEGUE, str(tmp_path), run, None)
    settings.write(tmp_path / "process")
    assert ProcessSettings.read(tmp_path / "process") == settings


def test_an_adapter_is_trained_in_two_runs_of_the_same_length_over_a_larger_model(tmp_path):
    run = RunSettings(seed=3, num_microbatches=48)
    adapted = run.with_adapter(tmp_path / "base")
    assert run.roles == tuple(Role)
    assert adapted.roles == (Role.UNINTERRUPTED, Role.SEGUE)
    assert (adapted.seed, adapted.num_microbatches) == (3, 48)
    assert adapted.model.width > run.model.width
    assert adapted.adapter == AdapterSettings(str(tmp_path / "base"))
