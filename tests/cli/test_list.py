def test_checkpoints_are_listed_newest_first(segue_command, run_path):
    outcome = segue_command("list", run_path, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    entries = outcome.json["checkpoints"]
    assert [(entry["seq"], entry["step"], entry["microbatch"]) for entry in entries] == [
        (3, 1, 3),
        (2, 1, 2),
        (1, 0, 1),
    ]
    assert all(entry["saved"] and entry["num_bytes"] > 0 and entry["error"] is None for entry in entries)


def test_a_person_sees_a_table(segue_command, run_path):
    out = segue_command("list", run_path).out
    assert "ckpt-000000003" in out
    assert "KiB" in out


def test_a_damaged_checkpoint_is_listed_as_such_and_the_listing_succeeds(segue_command, own_run):
    (own_run / "ckpt-000000003" / "manifest.json").write_text("{}")
    outcome = segue_command("list", own_run, "--json")
    assert outcome.code == 0
    assert outcome.json["checkpoints"][0]["error"]["code"] == "store.corrupt"
    assert outcome.json["checkpoints"][1]["error"] is None


def test_attempts_that_were_never_finished_are_mentioned(segue_command, own_run):
    (own_run / ".tmp-000000004.0123456789abcdef").mkdir()
    assert segue_command("list", own_run, "--json").json["unfinished"] == [".tmp-000000004.0123456789abcdef"]
    assert "1 unfinished attempt" in segue_command("list", own_run).out


def test_a_run_that_is_not_there_exits_5(segue_command, tmp_path):
    outcome = segue_command("list", tmp_path / "none")
    assert (outcome.code, outcome.out) == (5, "")
    assert "no such run" in outcome.err
