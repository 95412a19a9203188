import pytest

from segue.demo.model import ModelSize
from segue.demo.settings import Kill, ProcessSettings, Role, RunSettings


@pytest.mark.parametrize("kill", [None, Kill(7), Kill(9, "commit")])
@pytest.mark.parametrize("text", [None, "/some/file"])
def test_settings_come_through_a_file_unchanged(tmp_path, kill, text):
    run = RunSettings(text=text, seed=3, num_microbatches=48, model=ModelSize(width=8, dropout=0.3))
    settings = ProcessSettings(Role.SEGUE, str(tmp_path), run, kill)
    settings.write(tmp_path / "settings")
    assert ProcessSettings.read(tmp_path / "settings") == settings
