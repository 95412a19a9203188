"""The public surface: what is exported, documented, layered, and quiet."""

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import segue

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "segue").rglob("*.py"))
EXPORTS = [
    "BaseIdentity", "CheckpointInfo", "Checkpointer", "Component", "DataPosition", "Difference", "ExactSampler", "ForkedRun", "FullModel", "GradientAccumulator",
    "GradientEntry", "GradientsRecord", "PendingSave", "RankLocal", "RecordDiff", "RestoredTraining", "RngStreams",
    "SeededSamples", "StateOf", "SummedLoss", "TrainableOnly", "Training", "TrainingRecord", "WeightedAccumulator", "WindowRecord", "base_identity",
    "capture_gradients", "capture_module", "capture_optimizer", "diff", "errors", "fork", "from_bytes", "load", "optim", "per_sample_seed", "quant",
    "restore_gradients", "restore_module", "restore_optimizer", "save", "stores", "to_bytes", "verify",
]  # fmt: skip


def test_exports_are_these_and_sorted():
    assert segue.__all__ == EXPORTS
    assert sorted(EXPORTS) == EXPORTS


def test_nothing_else_is_public():
    # Subpackages become attributes once anything imports them.
    public = {
        name
        for name, value in vars(segue).items()
        if not name.startswith("_")
        and (name in ("errors", "optim", "quant", "stores") or not inspect.ismodule(value))
    }
    assert public == set(EXPORTS)


def test_public_names_are_a_package_that_says_it_is_typed():
    assert (ROOT / "src" / "segue" / "py.typed").exists()


def public_callables():
    """Every public function, and every public method of every public class, by name."""
    for name in EXPORTS:
        value = getattr(segue, name)
        if inspect.ismodule(value):
            continue
        yield name, value
        if inspect.isclass(value):
            for attribute, member in inspect.getmembers(value):
                wanted = not attribute.startswith("_") and getattr(member, "__module__", "segue").startswith(
                    "segue"
                )
                if wanted and (inspect.isroutine(member) or isinstance(member, property)):
                    yield f"{name}.{attribute}", member


PUBLIC = dict(public_callables())


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring_whose_first_line_stands_alone(name):
    value = PUBLIC[name]
    first = (inspect.getdoc(value) or "").split("\n\n")[0]
    assert first, name
    assert first.rstrip().endswith((".", "`")), first
    assert first.isascii()


def own_parameters(function):
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.name not in ("self", "cls")]


SECTIONS = {
    "Training": ("Args", "Raises", "Guarantees", "Cost", "Collective"),
    "Training.capture": ("Args", "Returns", "Raises", "Guarantees", "Cost", "Collective"),
    "Training.restore": ("Args", "Returns", "Raises", "Guarantees", "Cost", "Collective"),
    "Training.check": ("Args", "Raises", "Cost", "Collective"),
    "Training.capture_async": ("Returns", "Cost"),
    "Checkpointer": ("Args", "Raises", "Guarantees", "Collective"),
    "Checkpointer.resume": ("Args", "Returns", "Raises", "Guarantees", "Cost"),
    "Checkpointer.save": ("Args", "Returns", "Raises", "Guarantees", "Cost"),
    "Checkpointer.save_if_due": ("Args", "Returns", "Raises"),
    "Checkpointer.close": ("Raises",),
    "PendingSave.wait": ("Args", "Returns", "Raises"),
    "GradientAccumulator": ("Args", "Raises", "Guarantees"),
    "GradientAccumulator.add": ("Raises", "Cost"),
    "WeightedAccumulator": ("Args", "Raises", "Guarantees"),
    "WeightedAccumulator.add_sum": ("Args", "Raises"),
    "WeightedAccumulator.add_mean": ("Args", "Raises", "Guarantees", "Cost"),
    "WeightedAccumulator.backward_sum": ("Args", "Returns", "Raises", "Guarantees", "Cost"),
    "WeightedAccumulator.finish_mean": ("Raises", "Guarantees", "Cost"),
    "WeightedAccumulator.finish_sums": ("Returns", "Raises", "Guarantees", "Cost"),
    "GradientAccumulator.to_record": ("Returns", "Raises", "Guarantees", "Cost", "Collective"),
    "GradientAccumulator.load_record": ("Args", "Raises", "Guarantees", "Cost", "Collective"),
    "capture_gradients": ("Args", "Returns", "Raises", "Guarantees", "Cost", "Collective"),
    "restore_gradients": ("Args", "Raises", "Guarantees", "Cost", "Collective"),
    "capture_module": ("Args", "Returns", "Raises", "Guarantees", "Cost", "Collective"),
    "restore_module": ("Args", "Raises", "Guarantees", "Cost", "Collective"),
    "capture_optimizer": ("Args", "Returns", "Raises", "Guarantees", "Cost", "Collective"),
    "restore_optimizer": ("Args", "Raises", "Guarantees", "Cost", "Collective"),
    "TrainableOnly": ("Args", "Raises", "Guarantees", "Cost"),
    "ExactSampler": ("Args", "Raises", "Guarantees", "Cost"),
    "ExactSampler.commit": ("Raises",),
    "ExactSampler.load_state_dict": ("Raises",),
    "SeededSamples": ("Args", "Raises", "Guarantees", "Cost"),
    "per_sample_seed": ("Args", "Returns", "Raises", "Guarantees", "Cost"),
    "StateOf": ("Args", "Raises", "Guarantees"),
    "base_identity": ("Args", "Returns", "Raises", "Guarantees", "Cost", "Collective"),
    "TrainingRecord.capture": ("Args", "Returns", "Raises", "Guarantees", "Cost", "Collective"),
    "TrainingRecord.capture_async": ("Returns", "Cost"),
    "TrainingRecord.restore": ("Args", "Returns", "Raises", "Guarantees", "Cost", "Collective"),
    "TrainingRecord.restore_weighted": ("Returns", "Raises"),
    "RankLocal": ("Args", "Guarantees"),
    "GradientsRecord.from_entries": ("Args", "Raises"),
    "GradientsRecord.select": ("Args", "Raises"),
    "GradientsRecord.converted": ("Args", "Guarantees"),
    "GradientsRecord.to_tensors": ("Returns", "Raises", "Guarantees"),
    "save": ("Args", "Returns", "Raises", "Guarantees", "Cost"),
    "load": ("Args", "Returns", "Raises", "Cost"),
    "fork": ("Args", "Returns", "Raises", "Guarantees", "Cost"),
    "to_bytes": ("Args", "Returns", "Raises", "Cost"),
    "from_bytes": ("Args", "Returns", "Raises", "Cost"),
    "verify": ("Returns", "Raises", "Cost"),
    "diff": ("Returns", "Raises", "Cost"),
}


@pytest.mark.parametrize("name", SECTIONS)
def test_the_names_people_call_have_the_sections_that_apply(name):
    text = inspect.getdoc(PUBLIC[name])
    for section in SECTIONS[name]:
        assert re.search(rf"^{section}:$", text, re.MULTILINE), f"{name} lacks {section}"


@pytest.mark.parametrize("name", PUBLIC)
def test_documented_arguments_exist(name):
    value = PUBLIC[name]
    text = inspect.getdoc(value) or ""
    listed = re.search(r"^Args:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    if listed is None or isinstance(value, property):
        return
    documented = re.findall(r"^    (\w+):", listed.group(1), re.MULTILINE)
    assert documented
    assert set(documented) <= set(own_parameters(value))


@pytest.mark.parametrize(
    "name",
    [
        "save",
        "load",
        "Training.capture",
        "Training.restore",
        "Checkpointer.resume",
        "TrainingRecord.capture",
        "TrainingRecord.restore",
        "restore_module",
    ],
)
def test_every_argument_is_documented(name):
    text = inspect.getdoc(PUBLIC[name])
    for argument in own_parameters(PUBLIC[name]):
        assert re.search(rf"^    {argument}:", text, re.MULTILINE), argument


def test_public_values_are_frozen():
    for cls in (
        segue.TrainingRecord,
        segue.Difference,
        segue.RecordDiff,
        segue.CheckpointInfo,
        segue.FullModel,
        segue.GradientEntry,
        segue.GradientsRecord,
        segue.RankLocal,
        segue.RestoredTraining,
        segue.SummedLoss,
        segue.WindowRecord,
    ):
        assert dataclasses.is_dataclass(cls)
        assert cls.__dataclass_params__.frozen


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_importing_is_quiet_and_starts_nothing():
    script = (
        "import sys, threading, random, os, signal\n"
        "import torch, numpy\n"
        "before = (torch.get_rng_state().tolist(), random.getstate(), torch.get_num_threads(), dict(os.environ),\n"
        "          signal.getsignal(signal.SIGTERM), list(sys.meta_path))\n"
        "import segue\n"
        "after = (torch.get_rng_state().tolist(), random.getstate(), torch.get_num_threads(), dict(os.environ),\n"
        "         signal.getsignal(signal.SIGTERM), list(sys.meta_path))\n"
        "assert before == after\n"
        "assert threading.active_count() == 1\n"
        "heavy = {'typer', 'rich', 'matplotlib', 'torch.distributed.checkpoint', 'torch._dynamo'} & set(sys.modules)\n"
        "bare = {'torch._dynamo', 'torch.distributed.checkpoint'}\n"
        "print('heavy:', sorted(heavy - bare), file=sys.stderr)\n"
    )
    done = run(sys.executable, "-W", "error", "-c", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines() == ["heavy: []"]


def test_importing_adds_little_to_importing_torch():
    script = (
        "import torch, numpy, time\n"
        "began = time.process_time()\n"
        "import segue\n"
        "print(time.process_time() - began)\n"
    )
    fastest = min(float(run(sys.executable, "-c", script).stdout) for _ in range(2))
    assert fastest < 0.5


def test_the_layers_hold():
    done = run(str(Path(sys.executable).parent / "lint-imports"), "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield node.module


# What can run code that came from data. The demo and the benchmark do what people do today, to compare with it.
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
UNSAFE_TORCH = {"torch.load", "torch.save"}
COMPARISONS = {"bench", "demo"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src" / "segue")))
def test_no_source_can_run_code_that_came_from_data(path):
    tree = ast.parse(path.read_text())
    modules = {name.split(".")[0] for name in imported(tree)}
    assert not modules & UNSAFE_MODULES
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not calls & UNSAFE_CALLS
    if not COMPARISONS & set(path.relative_to(ROOT / "src" / "segue").parts):
        assert not calls & UNSAFE_TORCH
        assert "importlib.import_module" not in calls
        assert "allow_pickle=True" not in path.read_text()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src" / "segue")))
def test_only_the_command_line_writes_to_standard_output(path):
    edge = {"cli", "demo", "bench"} & set(path.relative_to(ROOT / "src" / "segue").parts)
    calls = {
        ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    }
    if not edge:
        assert "print" not in calls
        assert "sys.stdout.write" not in calls


def test_a_whole_life_writes_nothing_to_standard_output(tmp_path):
    script = f"""
import warnings
warnings.simplefilter("error")
import torch
import segue
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
training = segue.Training(model, optimizer)
for background in (False, True):
    with segue.Checkpointer(training, {str(tmp_path / "run")!r}, keep_last=1, background=background) as checkpointer:
        checkpointer.resume()
        checkpointer.save({{"x": 1}}).wait()
        checkpointer.resume()
segue.save(training.capture(), {str(tmp_path / "one")!r})
segue.verify({str(tmp_path / "one")!r})
segue.diff({str(tmp_path / "one")!r}, segue.load({str(tmp_path / "one")!r}))
"""
    done = run(sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr == ""


def test_no_file_of_the_library_is_too_long():
    lengths = {path.name: len(path.read_text().splitlines()) for path in SOURCES}
    assert max(lengths.values()) <= 500, max(lengths, key=lengths.get)
