import sys

import pytest

from segue.demo import picture
from segue.demo.settings import Kill, Role, RunSettings
from tests.demo.results import result

RUN = RunSettings(num_microbatches=8)


@pytest.mark.skipif(not picture.can_draw(), reason="matplotlib is not installed")
def test_a_picture_is_drawn_into_a_folder_that_is_made(tmp_path):
    losses = [float(8 - index) for index in range(8)]
    results = {role: result(role, losses) for role in Role}
    path = tmp_path / "new" / "loss.png"
    picture.draw(results, [Kill(3), Kill(6, "commit")], RUN, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_that_it_cannot_draw(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not picture.can_draw()
