from segue.demo.journal import Journal, JournalReader


def test_a_reader_gets_each_event_once_in_order(tmp_path):
    path = tmp_path / "journal"
    reader = JournalReader(path)
    assert reader.new_events() == []
    journal = Journal(path)
    journal.write("loss", microbatch=1, loss=(0.1).hex())
    journal.write("held", microbatch=1)
    assert [event["event"] for event in reader.new_events()] == ["loss", "held"]
    assert reader.new_events() == []
    journal.write("end")
    assert reader.new_events() == [{"event": "end"}]
    journal.close()


def test_a_line_is_not_read_before_it_is_whole(tmp_path):
    path = tmp_path / "journal"
    reader = JournalReader(path)
    path.write_bytes(b'{"event": "begin"}\n{"eve')
    assert [event["event"] for event in reader.new_events()] == ["begin"]
    with path.open("ab") as file:
        file.write(b'nt": "end"}\n')
    assert [event["event"] for event in reader.new_events()] == ["end"]


def test_a_later_process_appends_to_what_a_killed_one_wrote(tmp_path):
    path = tmp_path / "journal"
    Journal(path).write("begin")
    Journal(path).write("begin")
    assert len(JournalReader(path).new_events()) == 2
