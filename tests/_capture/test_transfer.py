import torch

from segue._capture.transfer import DeviceTransfer, HostTransfer, begin_transfer, can_transfer


class FakeStream:
    """A stream that writes down what it is asked; a copy inside of it happens at once."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def wait_stream(self, other):
        self.log.append((self.name, "waits for", other.name))

    def __enter__(self):
        self.log.append((self.name, "entered"))

    def __exit__(self, *_):
        self.log.append((self.name, "left"))

    def record_event(self):
        self.log.append((self.name, "event"))
        return self

    def synchronize(self):
        self.log.append((self.name, "synchronized"))


class Host(torch.Tensor):
    """Host memory that tells when it is copied into, and how."""

    def copy_(self, source, non_blocking=False):
        self.log.append(("copied", non_blocking))
        return self.as_subclass(torch.Tensor).copy_(source)


class FakeStreams:
    def __init__(self):
        self.log = []

    def current(self, device):
        return FakeStream("training", self.log)

    def side(self, device):
        return FakeStream("side", self.log)

    def pinned(self, num_bytes):
        self.log.append(("pinned", num_bytes))
        host = torch.zeros(num_bytes, dtype=torch.uint8).as_subclass(Host)
        host.log = self.log
        return host


def test_a_copy_from_a_device_is_ordered_behind_the_training_and_waited_for_by_its_event():
    streams, tensor = FakeStreams(), torch.arange(6.0).reshape(2, 3)
    transfer = DeviceTransfer(tensor, streams)
    assert streams.log == [
        ("pinned", 24),
        ("side", "waits for", "training"),
        ("side", "entered"),
        ("copied", True),
        ("side", "event"),
        ("side", "left"),
    ]
    transfer.finish()
    assert streams.log[-1] == ("side", "synchronized")
    data = transfer.data.as_subclass(torch.Tensor)
    assert torch.equal(data.view(torch.float32).reshape(2, 3), tensor)


def test_a_copy_on_the_host_is_made_when_it_is_finished():
    tensor = torch.arange(6.0)
    transfer = begin_transfer(tensor)
    assert isinstance(transfer, HostTransfer)
    tensor[0] = 9
    transfer.finish()
    assert torch.equal(transfer.data.view(torch.float32), tensor)
    tensor[0] = 0
    assert transfer.data.view(torch.float32)[0] == 9


def test_devices_without_streams_are_copied_at_once():
    assert can_transfer(torch.ones(1))
    assert not can_transfer(torch.ones(1, device="meta"))
