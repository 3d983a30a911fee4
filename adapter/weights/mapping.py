"""The weights of a model: tensors by name while the checkpoint still streams, and the files beside it.

A tensor is handed out as soon as every page it touches is there, whatever else is missing.
"""

from __future__ import annotations

import builtins
import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from adapter.checkpoint.header import TensorInfo
from adapter.checkpoint.tensor_filter import TensorChoice, TensorFilter
from adapter.checkpoint.ties import aliases
from adapter.device.base import Device
from adapter.device.meta import build
from adapter.device.modules import Stored, fill, move_the_rest
from adapter.device.names import examples, model_names
from adapter.device.pool import DevicePool
from adapter.device.tensors import torch_shape
from adapter.errors import CheckpointError, DeviceError, ObjectNotFound
from adapter.storage.access import Access
from adapter.streaming.manifest import StreamManifest
from adapter.streaming.options import StreamOptions
from adapter.streaming.waiting import Deadline, Failure
from adapter.timeline import Timeline
from adapter.weights.further_names import needed_names
from adapter.weights.in_process import begin
from adapter.weights.layout import lay_out
from adapter.weights.objects import CheckpointObject, TensorNotFound, UseOrder, Waiting, find_places, refuse_unused

if TYPE_CHECKING:
    import torch

M = TypeVar("M", bound="torch.nn.Module")


class Weights(Mapping[str, "torch.Tensor"]):
    """Tensors by their names in the checkpoint, in the order of the files; each is waited for when it is asked for.

    On the CPU a tensor is a view on the mapped file: it costs no memory until it is written to, and what is written
    stays in this process, where everyone who holds that tensor sees it. On a GPU each access makes a new copy.
    Asking for names, shapes and `len` waits for headers only. Thread-safe. A context manager: leaving it (or `close`)
    gives back files; tensors and modules stay good.
    """

    def __init__(
        self,
        manifest: StreamManifest,
        waiting: Waiting | None = None,
        device: str = "cpu",
        pool: DevicePool | None = None,
    ) -> None:
        self.address: str = manifest.address
        self._manifest = manifest
        self._waiting = waiting or Waiting()
        self._timeline = self._waiting.timeline
        self._pool = pool or DevicePool.instance()
        self._device_name = device
        self._lock = threading.Lock()
        self._owned = ExitStack()
        self._objects = {
            entry.name: CheckpointObject(entry, self._waiting, self._owned, manifest.tensors)
            for entry in manifest.objects
        }
        self._shards = [self._objects[entry.name] for entry in manifest.shards]
        self._places: dict[str, CheckpointObject] | None = None
        self._tied: dict[str, str] = {}
        self._used: dict[str, str] = {}
        self._devices: dict[str, Device] = {}
        self._directory: Path | None = None

    @classmethod
    def from_manifest(
        cls,
        manifest: StreamManifest,
        *,
        failure: Failure | None = None,
        deadline: Deadline | None = None,
        device: str = "cpu",
        timeline: Timeline | None = None,
    ) -> Self:
        """The weights that a fetcher streams, or has streamed, into the files that the manifest names.

        Args:
            manifest: What the fetcher wrote.
            failure: Tells whether the fetcher failed; its error ends every wait.
            deadline: Waits end there.
            device: Where tensors go: auto, cpu, cuda, cuda:0 … It is made when the first tensor is asked for.
            timeline: Gets a span for each wait that is worth one.
        """
        return cls(manifest, Waiting(failure, deadline, timeline or Timeline("worker")), device)

    @classmethod
    def open(
        cls,
        address: str,
        *,
        cache_dir: Path | str | None = None,
        device: str = "cpu",
        connections: int = 16,
        access: Access | None = None,
        **choice: Unpack[TensorChoice],
    ) -> Self:
        """The weights under an address, streamed by threads of this process: for notebooks, scripts and tests.

        Returns as soon as it is known what there is; use it in a `with` block, which ends the stream.

        Args:
            address: As `open_source` takes it: `s3://bucket/prefix/`, `hf://org/model`, a directory's path …
            cache_dir: Where files are kept between runs; None is `~/.cache/coldstart`.
            device: Where tensors go: auto, cpu, cuda, cuda:0 …
            connections: Range reads in flight at a time.
            access: Who reads: `Access(anonymous=True)`, a hub's token.
            **choice: What is fetched of the tensors, and what these weights then hold; everything unless it is said.
                `only`: patterns of names (`"model.layers.0.*"`), `"embed.weight[0:1000]"` for the rows 0 to 999 of a
                tensor; `skip`: patterns of names that are left out.

        Raises:
            ConfigurationError, StorageError, CheckpointError, CacheError: It cannot be read, or is no checkpoint.
        """
        options = StreamOptions(address=address, connections=connections, tensors=TensorFilter(**choice))
        begun = begin(address, options, Path(cache_dir) if cache_dir is not None else None, access)
        with begun.owned as opened:
            weights = cls(begun.manifest, begun.waiting, device)
            weights._owned.push(opened.pop_all())
        return weights

    @property
    def device(self) -> str:
        """Name of the device that tensors go to (`cpu`, `cuda:0`); asking does not initialise it.

        Raises:
            DeviceUnavailable: There is no such device.
        """
        return self._pool.resolve(self._device_name)

    # -- tensors ------------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor, on the device of these weights; waits until it is there.

        Raises:
            MissingTensor: The checkpoint has none of that name (also a `KeyError`).
            UnsupportedDtype: The installed torch has no such dtype.
            AdapterError, InitTimeout: The stream failed, or took too long.
        """
        device = self._device()
        tensor = self._place(name, device)
        device.finish()
        return tensor

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """The same as `weights[name][start:stop]`; waits until these rows are there, whatever else of it is missing.

        Raises:
            TensorMismatch: It does not have these rows.
            MissingTensor, UnsupportedDtype, AdapterError, InitTimeout: As for the whole tensor.
        """
        device = self._device()
        tensor = self._place(name, device, (start, stop))
        device.finish()
        return tensor

    def __iter__(self) -> Iterator[str]:
        """Names in the order in which their data lies in the files, then further names of tied tensors."""
        return iter(self._all_places())

    def __len__(self) -> int:
        return len(self._all_places())

    def __contains__(self, name: object) -> bool:
        return name in self._all_places()

    def info(self, name: str) -> TensorInfo:
        """Dtype, shape and place of a tensor; waits for headers only.

        Raises:
            MissingTensor: The checkpoint has none of that name.
        """
        return self._holder(name).header().tensors[self._tied.get(name, name)]

    @property
    def metadata(self) -> Mapping[str, str]:
        """The texts under `__metadata__`; where several shards have the same key, the first one's."""
        merged: dict[str, str] = {}
        for shard in self._shards:
            for key, value in shard.header().metadata.items():
                merged.setdefault(key, value)
        return MappingProxyType(merged)

    def into(
        self,
        factory: Callable[[], M],
        device: str | None = None,
        *,
        strict: bool = True,
        prefix: str | Mapping[str, str] | None = None,
        ignore: Collection[str] = (),
    ) -> M:
        """The factory's module with these tensors in it, ready for inference (`eval()`, no gradients).

        While the module is built its parameters have no values and cost nothing; buffers are computed as ever. Each
        parameter and persistent buffer then becomes the tensor of its name, in the dtype of the file. What is tied in
        the model stays tied, and the checkpoint needs only one of the names.

        Args:
            factory: Makes the module (a module class will do).
            device: Where to; None is the device of these weights.
            strict: Refuse missing and left-over tensors. Without it, what is missing keeps the values that the
                constructor gave it, whose cost is then paid.
            prefix: What the checkpoint's names begin with and the model's do not, or a map `{"module.": "encoder."}`
                from what they begin with to what stands there in the model; the longest counts.
            ignore: Names in the checkpoint to leave out; shell patterns (`"*.inv_freq"`).

        Raises:
            MissingTensor: The model wants what the checkpoint lacks, or computes from parameters what it must not.
            TensorMismatch: The checkpoint holds what the model lacks, a tensor has another shape, a module is lazy.
            LoadError: The factory does not make a module.
            UnsupportedDtype, DeviceError, AdapterError, InitTimeout: As for a single tensor.
        """
        import torch

        placing = self._device(device)
        # ordinary tensors, whatever mode the caller is in: they work in inference mode, and outside of it too
        with torch.inference_mode(False), torch.no_grad():
            with self._timeline.span("weights.build"):
                module = build(factory, on_meta=strict)
            names = needed_names(model_names(self, prefix, ignore), self._tied, module)
            stored = {name: Stored(held, torch_shape(self.info(held))) for name, held in names.items()}
            copied_bytes = 0

            def place(file_name: str) -> torch.Tensor:
                nonlocal copied_bytes
                copied_bytes += self.info(file_name).length_bytes
                return self._place(file_name, placing)

            host = placing.name == "cpu"
            with self._timeline.span("weights.assign" if host else "device.copy", "cpu" if host else "device") as span:
                try:
                    fill(module, stored, place, finish=placing.finish, strict=strict)
                except BaseException:
                    with suppress(DeviceError):
                        placing.finish()  # no copy may run on while its memory is given back
                    raise
                span.add(bytes=copied_bytes, tensors=len(stored))
            move_the_rest(module, placing.name)
            return module.eval()

    def use_order(self) -> UseOrder:
        """Tensors in the order in which they were first asked for, and their shards likewise."""
        with self._lock:
            used = dict(self._used)
        return UseOrder(tuple(dict.fromkeys(used.values())), tuple(used))

    # -- files beside the shards --------------------------------------------------------------------------------------

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all objects, relative to the address: shards, index and what lies beside them."""
        return tuple(self._objects)

    def bytes(self, name: str) -> builtins.bytes:
        """The whole content of a file, once it is there.

        Raises:
            ObjectNotFound: There is none of that name.
            AdapterError, InitTimeout: The stream failed, or took too long.
        """
        return self._object(name).content()

    def text(self, name: str) -> str:
        """The content of a UTF-8 text file.

        Raises:
            CheckpointError: It is not UTF-8.
            ObjectNotFound, AdapterError, InitTimeout: See `bytes`.
        """
        try:
            return self.bytes(name).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{name} is not UTF-8 text: {error}", file=name) from error

    def json(self, name: str) -> Any:
        """The value in a JSON file.

        Raises:
            CheckpointError: It is not JSON.
            ObjectNotFound, AdapterError, InitTimeout: See `bytes`.
        """
        text = self.text(name)
        try:
            return json.loads(text)
        except ValueError as error:
            raise CheckpointError(f"{name} is not JSON: {error}", file=name) from error

    def path(self, name: str) -> Path:
        """A path under which the complete file can be opened, with its own file name at the end; not to be written to.

        Raises:
            ObjectNotFound, AdapterError, InitTimeout: See `bytes`.
        """
        return self._object(name).sealed()

    def directory(self) -> Path:
        """A directory in which every file has its own relative name, once all of them are complete.

        The entries are symbolic links into the cache: for libraries that want a model's directory. It lies beside the
        cache's objects and stays, so that its path is the same in every start; only where the cache is read-only it
        is a temporary one, removed when these weights are closed.

        Raises:
            CacheError: Two names exclude each other (`a` and `a/b`), or there is nowhere to write.
            AdapterError, InitTimeout: The stream failed, or took too long.
        """
        targets = {name: each.sealed() for name, each in self._objects.items()}
        with self._lock:
            if self._directory is None:
                objects = next(iter(self._manifest)).published.parents[1]
                self._directory = lay_out(targets, objects, self._owned)
            return self._directory

    # -- life ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give back files and the directory. Tensors that were handed out stay good."""
        self._owned.close()
        self._directory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        return self is other  # a mapping's would load and compare every tensor

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"Weights({self.address!r}, {len(self._shards)} shards, device={self._device_name!r})"

    def _device(self, name: str | None = None) -> Device:
        # kept, since counting GPUs for each tensor costs more than the tensor; the device itself notices a fork
        wanted = name or self._device_name
        if wanted not in self._devices:
            self._devices[wanted] = self._pool.acquire(wanted, timeline=self._timeline)
        return self._devices[wanted]

    def _place(self, name: str, device: Device, rows: tuple[int, int] | None = None) -> torch.Tensor:
        import torch

        holder = self._holder(name)
        name = self._tied.get(name, name)
        with self._lock:
            self._used.setdefault(name, holder.entry.name)
        tensor = holder.tensor(name, rows)
        with torch.inference_mode(False), torch.no_grad():
            return device.place(tensor)

    def _holder(self, name: str) -> CheckpointObject:
        places = self._all_places()
        if name not in places:
            raise TensorNotFound(
                f"the checkpoint {self.address} has no tensor {name!r}; it holds {len(places)}: {examples(places)}",
                tensor=name,
            )
        return places[name]

    def _all_places(self) -> Mapping[str, CheckpointObject]:
        """Tensor → shard, in file order. Headers arrive before the bulk of any shard: waiting for all costs little."""
        with self._lock:
            if self._places is None:
                wanted = self._manifest.tensors
                index = next((each for each in self._objects.values() if each.entry.kind == "index"), None)
                places = find_places(self._shards, index if not wanted else None)
                self._tied = aliases(self.metadata, places)
                places |= {name: places[kept] for name, kept in self._tied.items()}
                refuse_unused(wanted, places, self._shards, address=self.address)
                self._places = places
            return self._places

    def _object(self, name: str) -> CheckpointObject:
        if name not in self._objects:
            raise ObjectNotFound(
                f"{self.address} has no file {name!r} that was fetched; there are {examples(sorted(self._objects))}",
                key=name,
            )
        return self._objects[name]
