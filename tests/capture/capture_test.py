"""The capture package, against PyTorch: what is on disk is what every worker computed, and the program accepts it."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy
import torch
import torch.distributed as dist
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "traces", "capture"))

from sparscale_capture import Capture, early_middle_late, every, finish, stream  # noqa: E402
from sparscale_capture import capture as capture_module  # noqa: E402

PROGRAM = os.environ.get("SPARSCALE_PROGRAM", "")
STEPS = 4


def read(folder):
    """(trace.json, gradients [T, W, N], residuals of the workers that have one)."""
    with open(os.path.join(folder, "trace.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    gradients = numpy.full((len(manifest["iterations"]), manifest["workers"], manifest["gradients"]), numpy.nan, numpy.float32)
    residuals = {}
    for entry in manifest["files"]:
        with open(os.path.join(folder, entry["path"]), "rb") as file:
            content = file.read()
        length, = struct.unpack("<Q", content[:8])
        header = json.loads(content[8:8 + length])

        def tensor(name):
            first, last = header[name]["data_offsets"]
            data = content[8 + length + first:8 + length + last]
            if header[name]["dtype"] == "BF16":
                values = (numpy.frombuffer(data, "<u2").astype(numpy.uint32) << 16).view(numpy.float32)
            else:
                values = numpy.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[header[name]["dtype"]]).astype(numpy.float32)
            return values.reshape(header[name]["shape"])

        values = tensor("grad")
        if "scale" in header:
            values = values / tensor("scale")[:, None, None]
        gradients[slice(*entry["iterations"]), slice(*entry["workers"])] = values
        if "residual" in header:
            residuals[entry["workers"][0]] = tensor("residual")
    return manifest, gradients, residuals


def verify(test, folder):
    if not PROGRAM:
        return
    done = subprocess.run([PROGRAM, "trace", "verify", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    test.assertEqual((done.returncode, done.stderr), (0, ""))


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 40), nn.ReLU(), nn.Linear(40, 5))


def batch(iteration, worker):
    random = torch.Generator().manual_seed(100 * iteration + worker)
    return torch.randn(6, 1, 8, 8, generator=random), torch.randint(0, 5, (6,), generator=random)


def flat(gradients):
    return torch.cat([gradient.reshape(-1) for gradient in gradients]).numpy().copy()


def rank_main(folder):
    """What one rank of the distributed tests does."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    # A real network; the gradients that this rank computes are recorded by hooks of its parameters, apart from the capture.
    net = nn.parallel.DistributedDataParallel(network(), broadcast_buffers=False)
    local, averages = [], []
    for parameter in net.parameters():
        parameter.register_hook(lambda gradient, key=id(parameter): seen.__setitem__(key, gradient.clone()))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    capture = Capture(net, os.path.join(folder, "real"), [(1, STEPS - 1)], dtype="F32", name="real")
    for iteration in range(STEPS):
        seen = {}
        optimizer.zero_grad()
        inputs, targets = batch(iteration, rank)
        loss = nn.functional.cross_entropy(net(inputs), targets)
        loss.backward()
        capture.step(loss=loss, learning_rate=0.1)
        local.append(flat([seen[id(parameter)] for parameter in net.parameters()]))
        averages.append(flat([parameter.grad for parameter in net.parameters()]))
        optimizer.step()
    capture.close()
    # Two micro-batches, of which only the second is synchronised; every gradient is a multiple of 1/8 below 2^10, so that sums are exact
    # in every order.
    linear = nn.Linear(30, 40, bias=False)
    nn.init.zeros_(linear.weight)
    net = nn.parallel.DistributedDataParallel(linear)
    capture = Capture(net, os.path.join(folder, "whole"), [(0, 2)], dtype="F32", divide_by=2, layer_times=False)
    whole = []
    for iteration in range(2):
        net.zero_grad()
        for micro in range(2):
            random = torch.Generator().manual_seed(1000 * iteration + 10 * rank + micro)
            inputs = torch.randint(-99, 99, (4, 30), generator=random).float()
            with net.no_sync() if micro == 0 else contextlib.nullcontext():
                (net(inputs).sum() / 4).backward()
        capture.step()
        whole.append(flat([linear.weight.grad / 2]))
    capture.close()
    # The hook changes nothing: training without one gives the same average.
    net = nn.parallel.DistributedDataParallel(network(), broadcast_buffers=False)
    inputs, targets = batch(0, rank)
    nn.functional.cross_entropy(net(inputs), targets).backward()
    plain = flat([parameter.grad for parameter in net.parameters()])
    numpy.savez(os.path.join(folder, f"rank-{rank}.npz"), local=local, averages=averages, whole=whole, plain=plain)
    dist.destroy_process_group()


def victim_main(folder):
    """Eight virtual workers; killed while worker 3 writes iteration 5."""
    append = stream.WorkerStream.append

    def killing(self, record, values):
        if record["iteration"] == 5 and self.base.endswith("worker-3"):
            self.data.write(values.tobytes()[:1000])
            self.data.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, record, values)

    stream.WorkerStream.append = killing
    train(folder, [(2, 30)], 32, 8)


def train(folder, windows, iterations, workers, net=None, **options):
    net = net or network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    capture = Capture(net, folder, windows, workers=workers, **options)
    averages = []
    for iteration in range(iterations):
        for worker in range(workers):
            with capture.worker(worker) as report:
                inputs, targets = batch(iteration, worker)
                loss = nn.functional.cross_entropy(net(inputs), targets)
                loss.backward()
                report(loss)
        capture.step(learning_rate=0.1)
        averages.append(flat([parameter.grad for parameter in net.parameters()]))
        optimizer.step()
    capture.close()
    return averages


class CaptureTest(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = self.temporary.name
        self.addCleanup(self.temporary.cleanup)

    def distributed(self, world):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = []
        for rank in range(world):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                           "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
            ranks.append(subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), "--rank", self.folder], env=environment))
        for rank in ranks:
            self.assertEqual(rank.wait(timeout=120), 0)
        manifest, gradients, _ = read(os.path.join(self.folder, "real"))
        verify(self, os.path.join(self.folder, "real"))
        self.assertEqual(manifest["workers"], world)
        self.assertEqual(manifest["iterations"], list(range(1, STEPS)))
        self.assertEqual(manifest["learning_rate"], [0.1] * (STEPS - 1))
        self.assertEqual(numpy.array(manifest["loss"]).shape, (STEPS - 1, world))
        self.assertEqual([layer["name"] for layer in manifest["layers"]], [name for name, _ in network().named_parameters()])
        records = [numpy.load(os.path.join(self.folder, f"rank-{rank}.npz")) for rank in range(world)]
        for rank, record in enumerate(records):
            numpy.testing.assert_array_equal(gradients[:, rank], record["local"][1:])
        self.assertTrue((gradients[:, 0] != gradients[:, 1]).any())
        if world == 2:  # one sum: no order to differ in
            numpy.testing.assert_array_equal(gradients[:, 0] / numpy.float32(2) + gradients[:, 1] / numpy.float32(2),
                                             records[0]["averages"][1:])
        numpy.testing.assert_allclose(gradients.mean(axis=1), records[0]["averages"][1:], rtol=1e-5, atol=1e-7)
        numpy.testing.assert_array_equal(records[0]["plain"], records[0]["averages"][0])
        _, whole, _ = read(os.path.join(self.folder, "whole"))
        self.assertEqual(whole.shape, (2, world, 1200))
        self.assertGreater(numpy.abs(whole).max(), 10)
        numpy.testing.assert_array_equal(whole.mean(axis=1), records[0]["whole"])

    def test_mean_of_captured_is_the_average_of_two_processes(self):
        self.distributed(2)

    def test_mean_of_captured_is_the_average_of_four_processes(self):
        self.distributed(4)

    def test_a_killed_job_leaves_what_was_finished(self):
        killed = os.path.join(self.folder, "killed")
        done = subprocess.run([sys.executable, "-B", os.path.abspath(__file__), "--victim", killed], stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, -signal.SIGKILL)
        self.assertFalse(os.path.exists(os.path.join(killed, "trace.json")))
        with self.assertRaises(FileExistsError):
            train(killed, [(0, 2)], 1, 8)
        done = subprocess.run([sys.executable, "-B", "-m", "sparscale_capture", "finish", killed], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "PYTHONPATH": os.path.join(HERE, "..", "..", "traces", "capture")})
        self.assertEqual(done.stdout, f"{killed}: 3 iterations\n")
        verify(self, killed)
        train(os.path.join(self.folder, "whole"), [(2, 3)], 5, 8)
        manifest, gradients, _ = read(killed)
        self.assertEqual(manifest["iterations"], [2, 3, 4])
        numpy.testing.assert_array_equal(gradients, read(os.path.join(self.folder, "whole"))[1])
        self.assertEqual(sorted(os.listdir(killed)), ["trace.json"] + [f"worker-{w}.safetensors" for w in range(8)])
        self.assertEqual(finish(killed), [])

    def test_virtual_workers_have_batch_statistics_of_their_own(self):
        averages = train(os.path.join(self.folder, "t"), [(0, 3)], 3, 3, dtype="F32")
        _, gradients, _ = read(os.path.join(self.folder, "t"))
        verify(self, os.path.join(self.folder, "t"))
        numpy.testing.assert_allclose(gradients.mean(axis=1), averages, rtol=1e-5, atol=1e-7)
        net = network()
        inputs, targets = batch(0, 1)
        nn.functional.cross_entropy(net(inputs), targets).backward()
        numpy.testing.assert_array_equal(gradients[0, 1], flat([parameter.grad for parameter in net.parameters()]))
        net = network()
        capture = Capture(net, os.path.join(self.folder, "u"), [(9, 1)], workers=2)
        for worker in range(2):
            with capture.worker(worker):
                net(batch(0, worker)[0]).sum().backward()
        own = [buffers["1.running_mean"] for buffers in capture.module_buffers]
        alone = network()
        alone(batch(0, 1)[0])
        numpy.testing.assert_array_equal(own[1].numpy(), alone[1].running_mean.numpy())
        self.assertTrue((own[0] != own[1]).any())
        with self.assertRaisesRegex(ValueError, "found 1 twice"):
            with capture.worker(1):
                pass
        capture.close()

    def test_sampled_rows_are_rows_of_the_whole(self):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.Linear(100, 100, bias=False), nn.Linear(100, 5))
        twin = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.Linear(100, 100, bias=False), nn.Linear(100, 5))
        twin.load_state_dict(net.state_dict())
        train(os.path.join(self.folder, "whole"), [(1, 2)], 3, 2, net=net, dtype="F32")
        train(os.path.join(self.folder, "rows"), [(1, 2)], 3, 2, net=twin, dtype="F32", rows=0.25, seed=7)
        whole, gradients, _ = read(os.path.join(self.folder, "whole"))
        manifest, sampled, _ = read(os.path.join(self.folder, "rows"))
        verify(self, os.path.join(self.folder, "rows"))
        self.assertEqual(manifest["full_gradients"], whole["gradients"])
        self.assertEqual(manifest["gradients"], 25 * 64 + 100 + 25 * 100 + 505)
        self.assertEqual(manifest["layers"][0]["rows"], manifest["layers"][2]["rows"])
        self.assertNotIn("rows", manifest["layers"][1])
        for full, layer in zip(whole["layers"], manifest["layers"]):
            expected = gradients[:, :, full["offset"]:full["offset"] + full["size"]].reshape([2, 2] + full["shape"])
            if "rows" in layer:
                expected = expected[:, :, layer["rows"]]
                self.assertEqual(layer["full_shape"], full["shape"])
            part = sampled[:, :, layer["offset"]:layer["offset"] + layer["size"]]
            numpy.testing.assert_array_equal(part, expected.reshape(2, 2, -1))

    def test_sixteen_bits(self):
        random = numpy.random.default_rng(1)
        values = (random.standard_normal(10000) * numpy.exp(random.standard_normal(10000)) * 1e-6).astype(numpy.float32)
        values[:3] = [0, values.max() * 2, -1e-12]
        stored, scale = stream.encode(values, "F16")
        self.assertEqual(numpy.frexp(scale)[0], 0.5)
        largest = numpy.abs(stored.astype(numpy.float32)).max()
        self.assertTrue(2**14 <= largest < 2**15)
        numpy.testing.assert_allclose(stored.astype(numpy.float32) / numpy.float32(scale), values, rtol=2**-11, atol=2**-25 / scale)
        stored, _ = stream.encode(values, "BF16")
        expected = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
        numpy.testing.assert_array_equal((stored.astype(numpy.uint32) << 16).view(numpy.float32), expected)
        train(os.path.join(self.folder, "f32"), [(0, 2)], 2, 2, dtype="F32")
        for dtype, error in (("F16", 2**-11), ("BF16", 2**-8)):
            train(os.path.join(self.folder, dtype), [(0, 2)], 2, 2, dtype=dtype)
            verify(self, os.path.join(self.folder, dtype))
            numpy.testing.assert_allclose(read(os.path.join(self.folder, dtype))[1], read(os.path.join(self.folder, "f32"))[1], rtol=error,
                                          atol=1e-9)

    def test_windows(self):
        self.assertEqual(early_middle_late(100, 10), [(0, 10), (45, 10), (90, 10)])
        self.assertEqual(every(20, 5, 50, first=4), [(4, 5), (24, 5), (44, 5)])
        for windows in ([], [(0, 5), (4, 2)], [(3, 0)]):
            with self.assertRaisesRegex(ValueError, "windows: expected"):
                Capture(network(), self.folder, windows)
        folder = os.path.join(self.folder, "several")
        averages = train(folder, [(1, 2), (4, 3)], 6, 2, dtype="F32")  # the training ends inside the second
        self.assertEqual(sorted(os.listdir(folder)), ["iteration-1", "iteration-4"])
        for start in (1, 4):
            manifest, gradients, _ = read(os.path.join(folder, f"iteration-{start}"))
            verify(self, os.path.join(folder, f"iteration-{start}"))
            self.assertEqual(manifest["iterations"], [start, start + 1])
            numpy.testing.assert_allclose(gradients.mean(axis=1), averages[start:start + 2], rtol=1e-5, atol=1e-7)

    def test_loss_scale_and_skipped_steps(self):
        class Scaler:
            scale = 1024.0

            def get_scale(self):
                return self.scale

        scaler = Scaler()
        net, twin = network(), network()
        capture = Capture(net, os.path.join(self.folder, "t"), [(0, 2)], dtype="F32", scaler=scaler)
        captured = []
        for iteration, broken in enumerate([False, True, False]):
            inputs, targets = batch(iteration, 0)
            net.zero_grad()
            (nn.functional.cross_entropy(net(inputs), targets) * scaler.scale * (float("inf") if broken else 1)).backward()
            capture.step(learning_rate=0.1)
            twin.zero_grad()
            nn.functional.cross_entropy(twin(inputs), targets).backward()
            if not broken:
                captured.append(flat([parameter.grad for parameter in twin.parameters()]))
            scaler.scale = 512.0 if broken else scaler.scale
        capture.close()
        manifest, gradients, _ = read(os.path.join(self.folder, "t"))
        verify(self, os.path.join(self.folder, "t"))
        self.assertEqual(manifest["iterations"], [0, 1])
        self.assertEqual(manifest["loss_scale"], [1024.0, 512.0])
        numpy.testing.assert_allclose(gradients[:, 0], captured, rtol=1e-5, atol=1e-9)

    def test_times_and_residual(self):
        net = network()
        residual = {name: torch.full_like(parameter, i + 1.0) for i, (name, parameter) in enumerate(net.named_parameters())}
        train(os.path.join(self.folder, "t"), [(0, 4)], 4, 1, net=net, residual=lambda: residual)
        manifest, _, residuals = read(os.path.join(self.folder, "t"))
        verify(self, os.path.join(self.folder, "t"))
        expected = numpy.concatenate([numpy.full(layer["size"], i + 1.0) for i, layer in enumerate(manifest["layers"])])
        numpy.testing.assert_array_equal(residuals[0][0], expected)
        self.assertEqual(manifest["timing_device"], "CPU")
        for key in ("forward_time_s", "backward_time_s"):
            self.assertEqual(len(manifest[key]), len(manifest["layers"]))
            self.assertTrue(0 < sum(manifest[key]) < 1)
        # A module's time stands at its first parameter; every parameter has a backward time.
        self.assertEqual([time > 0 for time in manifest["forward_time_s"]], [True, False] * 4)
        self.assertTrue(all(time > 0 for time in manifest["backward_time_s"]))
        train(os.path.join(self.folder, "u"), [(0, 1)], 1, 1, layer_times=False)
        self.assertNotIn("forward_time_s", read(os.path.join(self.folder, "u"))[0])

    def test_a_step_without_a_backward_pass_is_refused(self):
        net = network()
        capture = Capture(net, os.path.join(self.folder, "t"), [(0, 1)], workers=2)
        with self.assertRaisesRegex(ValueError, "expected a backward pass"):
            capture.step()
        capture.close()
        for options, message in (({"dtype": "F8"}, "dtype"), ({"rows": 0}, "rows"), ({"divide_by": 0}, "divide_by")):
            with self.assertRaisesRegex(ValueError, message):
                Capture(net, self.folder, [(0, 1)], **options)

    def test_a_stream_replays_like_the_stored_trace(self):
        if not PROGRAM:
            self.skipTest("needs the program")
        rest = ["--sparsifier", "topk", "--workers", "3", "--hashes"]
        source = subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), "--stream"], stdout=subprocess.PIPE)
        streamed = subprocess.run([PROGRAM, "replay", "--trace", "-"] + rest, stdin=source.stdout, stdout=subprocess.PIPE)
        source.stdout.close()
        self.assertEqual((source.wait(), streamed.returncode), (0, 0))
        train(os.path.join(self.folder, "t"), [(1, 3)], 5, 3)
        stored = subprocess.run([PROGRAM, "replay", "--trace", os.path.join(self.folder, "t")] + rest, stdout=subprocess.PIPE)
        records = [json.loads(line) for line in streamed.stdout.splitlines()]
        self.assertEqual(len(records), 3)
        # A stream has one scale for all workers, a file one per worker: the selections are the same.
        for record, other in zip(records, map(json.loads, stored.stdout.splitlines())):
            self.assertEqual(record["selected_sha256"], other["selected_sha256"])

    def test_the_default_hook_is_that_of_ddp(self):
        self.assertIs(capture_module.default_hooks.allreduce_hook, Capture.__init__.__kwdefaults__["hook"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(sys.argv[2])
    elif sys.argv[1:2] == ["--stream"]:
        torch.set_num_threads(1)
        train("-", [(1, 3)], 5, 3)
    elif sys.argv[1:2] == ["--victim"]:
        victim_main(sys.argv[2])
    else:
        unittest.main()
