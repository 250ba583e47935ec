"""Links between the GPUs of ranks: windows of peers, and NCCL."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import traceback

import numpy as np

import featgraph as fg

faulthandler.dump_traceback_later(100, exit=True)


def say(*words):
    print(f"[{os.environ['RANK']}]", *words, flush=True)


def part(function):
    try:
        function()
    except BaseException:
        say("FAILED", function.__name__, traceback.format_exc()[-1500:])


def main():
    rank = int(os.environ["RANK"])
    from featgraph._cuda import cuda

    if len(os.environ.get("CUDA_VISIBLE_DEVICES", "")) != 1:
        cuda.select_device(rank)
    engine = fg.distributed.init(timeout=20)
    from featgraph.ranks import window_kernels as w
    from featgraph.ranks.gpu_links import GpuLinks
    from featgraph.ranks.windows import Mailboxes, can_map
    from featgraph.runtime.devices.choose import choose_device
    from featgraph.runtime.recording.cuda_record import Recording

    device = choose_device("cuda")
    peer = 1 - rank

    def mapping():
        say("can_map", can_map(engine, device))

    part(mapping)

    def numbers():
        boxes = Mailboxes(engine, device, [64, 64], "")
        values = device.upload(np.array([rank + 5], np.int64))

        def both():
            device.launches(
                w.post_numbers, 1, 32, (values, 1, 8, boxes.there, boxes.own)
            )
            device.launches(
                w.take_numbers,
                1,
                64,
                (values, 1, 8, 0, boxes.here, boxes.own, boxes.limit_ns, True),
            )

        begun = time.perf_counter()
        both()
        say("numbers", device.download(values), "first", time.perf_counter() - begun)
        device.fill(values, 0)
        both()
        device.recorder.begin({})
        for _ in range(20):
            both()
        operations = device.recorder.end() or tuple(
            device.recorder._own.operations or ()
        )
        for _ in range(3):
            cuda.synchronize()
            engine.barrier()
            begun = time.perf_counter()
            for _ in range(200):
                both()
            cuda.synchronize()
            say(
                "launched pair us",
                (time.perf_counter() - begun) / 200 * 1e6,
                device.download(boxes.own),
            )
        device.recorder.begin({})
        for _ in range(20):
            both()
        operations = tuple(device.recorder._own.operations)
        device.recorder.end()
        graph = Recording(device.recorder._driver, operations, False)
        for _ in range(3):
            cuda.synchronize()
            engine.barrier()
            begun = time.perf_counter()
            for _ in range(50):
                graph.launch()
            graph.wait()
            say("graph pair us", (time.perf_counter() - begun) / 1000 * 1e6)
        if rank == 0:  # the other posts no more
            device.fill(boxes.own, 0)
            short = np.int64(1e9)
            own = device.upload(np.array([10**9, 0, 0], np.int64))
            device.launches(
                w.take_numbers, 1, 64, (values, 1, 8, 0, boxes.here, own, short, True)
            )
            begun = time.perf_counter()
            say("lost", device.download(values), time.perf_counter() - begun)
        engine.barrier()

    part(numbers)

    def rows():
        from featgraph.ranks.gpu_windows import Channel

        for count, k in (
            (1 << 10, 1),
            (1 << 16, 1),
            (1 << 20, 1),
            (1 << 23, 1),
            (1 << 18, 32),
        ):
            ends = [(0, count if r == peer else 0) for r in range(2)]
            sent = [np.arange(*pair) for pair in ends]
            taken = [np.arange(count, count + last) for _, last in ends]
            channel = Channel(sent, taken, engine, device, "rows")
            rng = np.random.default_rng(rank)
            data = rng.random((2 * count, k)).astype(np.float32)
            values = device.rows.held(device.rows.upload(data), data.shape)
            ghosts = device.sets.empty(2 * count // 32)
            for share in (1.0, 0.03):
                bits = np.packbits(rng.random(2 * count) < share, bitorder="little")
                changed = device.sets.upload(bits.view(np.uint32))
                times = []
                for _ in range(8):
                    cuda.synchronize()
                    engine.barrier()
                    a, b, c = cuda.event(), cuda.event(), cuda.event()
                    a.record()
                    boxes = channel.post([values], changed)
                    b.record()
                    channel.take([values], boxes, ghosts)
                    c.record()
                    c.synchronize()
                    times.append((1000 * a.elapsed_time(b), 1000 * b.elapsed_time(c)))
                post, take = np.median(times[2:], axis=0)
                rate = share * count * k * 4 / post / 1e3
                own = device.download(boxes.own)
                say(
                    f"rows {count} k {k} share {share}: post {post:.1f} us, "
                    f"{rate:.0f} GB/s, take {take:.1f} us, own {own}"
                )
            theirs = np.random.default_rng(peer).random((2 * count, k))
            back = device.rows.download(values.array, data.shape)
            theirs = theirs.astype(np.float32)
            say("rows are right", bool((back[count:] == theirs[:count]).all()))

    part(rows)

    def nccl():
        import torch
        import torch.distributed as talk
        from datetime import timedelta

        say(
            "torch",
            torch.__version__,
            talk.is_nccl_available(),
            torch.cuda.device_count(),
            str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid),
        )
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "2"
        group = talk.new_group(backend="nccl", timeout=timedelta(seconds=10))
        number = cuda.get_current_device().id
        say("device ids", number, torch.cuda.current_device())
        for size in (8, 1 << 10, 1 << 20, 1 << 26):
            out, back = (
                device.empty((size // 4,), "uint32"),
                device.empty((size // 4,), "uint32"),
            )
            device.fill(out, rank + 7)
            times = []
            for _ in range(8):
                cuda.synchronize()
                engine.barrier()
                begun = time.perf_counter()
                lent = [
                    torch.as_tensor(a.view(np.uint8), device=f"cuda:{number}")
                    for a in (out, back)
                ]
                asked = [
                    talk.P2POp(talk.isend, lent[0], peer, group),
                    talk.P2POp(talk.irecv, lent[1], peer, group),
                ]
                works = talk.batch_isend_irecv(asked)
                for work in works:
                    work.wait()
                host = time.perf_counter() - begun
                cuda.synchronize()
                times.append((1e6 * host, 1e6 * (time.perf_counter() - begun)))
            shared = lent[1].data_ptr() == back.device_ctypes_pointer.value
            say(
                f"nccl {size} B: host {np.median(times[2:], 0)[0]:.0f}, whole {np.median(times[2:], 0)[1]:.0f} us",
                "no copy",
                shared,
                "right",
                device.download(back[:2])
                if size < 1 << 20
                else back[:4].copy_to_host(),
            )
        if rank == 0:  # the other one does not
            lent = torch.as_tensor(back.view(np.uint8), device=f"cuda:{number}")
            begun = time.perf_counter()
            for work in talk.batch_isend_irecv(
                [talk.P2POp(talk.irecv, lent, peer, group)]
            ):
                work.wait()
            try:
                cuda.synchronize()
            finally:
                say(
                    "a receive that nobody sends ended after",
                    time.perf_counter() - begun,
                )
            device.fill(out, 3)
            say("still usable", device.download(out[:2]))
        else:
            time.sleep(14)
        engine.barrier()

    part(nccl)
    say("end")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
