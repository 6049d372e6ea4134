"""Clauses that are about what a client leaves alone, or refuses before anything happens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support import State, consumer, failing, new_store, producer, read, record, reopened

from deltastore import Producer, Store
from deltastore.backends.memory import MemoryBackend
from deltastore.codec import shard
from deltastore.errors import (
    AuthError,
    BadRecord,
    Broken,
    Diverged,
    IntegrityError,
    UnknownFeature,
    Unsupported,
)
from deltastore.protocol import keys
from deltastore.protocol.features import Requires
from deltastore.protocol.identity import CommitMode, Identity
from deltastore.protocol.records import VersionRecord, check_file_name, parse_slot
from deltastore.protocol.wire import Envelope, Signature
from deltastore.testing import FaultBackend


def published(store: Store, weights: State, **options: object) -> Store:
    """The store with version 0, a claim, and version 1 with these weights."""
    with producer(store, **options) as trainer:
        trainer.publish(weights, step=1).result()
    return store


def following(store: Store) -> VersionRecord:
    """A record that may come next."""
    last = store.log.require(1)
    one = record(store, 1)
    edge = replace(one.edges[0], target=2)
    return replace(one, version=2, parent=last.sha256, step=2, edges=(edge,), last_anchor=2)


# --- Names and identity ------------------------------------------------------------------------------


@pytest.mark.req("DS-FILE-1")
@pytest.mark.parametrize(
    "name", ["config.json", "a/b", "tokenizer\u00a0v2.json", "\U0010ffff", "..a", "é", "x" * 1024]
)
def test_file_name_without_control_characters_is_taken(name: str) -> None:
    assert check_file_name(name) == name


@pytest.mark.req("DS-FILE-1")
@pytest.mark.parametrize(
    "name",
    ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a\\b", "a\nb", "a\x7f", "a\x85b", "\ud800", "é" * 513],
)
def test_file_name_that_could_leave_its_directory_is_refused(name: str) -> None:
    with pytest.raises(BadRecord):
        check_file_name(name)


@pytest.mark.req("DS-STORE-1")
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_store_json_in_another_encoding_than_utf8_is_refused(encoding: str) -> None:
    text = Identity(store="00" * 16).to_bytes().decode()
    with pytest.raises(BadRecord):
        Identity.from_bytes(text.encode(encoding))


@pytest.mark.req("DS-BACK-5", "DS-STORE-4")
def test_store_with_conditional_commits_is_not_written_to_without_conditional_create(weights: State) -> None:
    plain = MemoryBackend(conditional=False)
    plain.put(keys.STORE, Identity(store="00" * 16, commit=CommitMode.CONDITIONAL).to_bytes())
    with pytest.raises(Unsupported):
        Producer(reopened(new_store(), plain))
    assert [info.key for info in plain.list()] == [keys.STORE]


# --- What is left alone ------------------------------------------------------------------------------


@pytest.mark.req("DS-KEY-5")
def test_keys_that_are_not_the_protocols_are_in_nobodys_way(store: Store, weights: State) -> None:
    foreign = ["x/notes", "readme", "versions/latest", "edges/latest/a", f"edges/{1:020d}/next", "objects/a"]
    for key in foreign:
        store.access.backend.put(key, b"mine")
    published(store, weights)
    assert read(store)
    assert all(store.access.backend.get(key, max_size=9) == b"mine" for key in foreign)


@pytest.mark.req("DS-ORDER-1")
def test_writer_deletes_nothing_even_where_its_publish_fails(weights: State) -> None:
    plan = failing("put_if_absent", AuthError("no"), key=keys.version(2))
    backend = FaultBackend(MemoryBackend(), plan)
    trainer = producer(new_store(backend))
    trainer.publish(weights, step=1).result()
    before = len([o for o in backend.operations if o.name == "put" and o.key.startswith("objects/")])
    with pytest.raises(AuthError):
        trainer.publish({name: tensor + 1 for name, tensor in weights.items()}, step=2).result()
    with pytest.raises(Broken):
        trainer.publish(weights, step=3)
    trainer.close()
    assert len([o for o in backend.operations if o.name == "put" and o.key.startswith("objects/")]) > before
    assert [o for o in backend.operations if o.name == "delete"] == []


@pytest.mark.req("DS-SIG-3")
def test_signatures_are_accepted_and_mean_nothing(store: Store, weights: State) -> None:
    slot = published(store, weights).log.require(1)
    envelope = Envelope.from_bytes(slot.data, where="record")
    assert envelope.signatures == ()
    signed = replace(envelope, signatures=(Signature("k", "ed25519", bytes(64)),) * 16).to_bytes()
    found = parse_slot(signed, store=store.identity.store, version=1)
    assert found.record == slot.record
    assert found.sha256 != slot.sha256


@pytest.mark.req("DS-SHARD-4")
def test_every_encoding_has_a_nonce_of_its_own(weights: State) -> None:
    nonces: list[str] = []
    for _ in range(2):
        store = new_store()
        published(store, weights)
        shards = record(store, 1).edges[0].shards
        nonces += [shard.parse(store.get_object(s.sha256, s.size)).meta.nonce for s in shards]
    assert len(set(nonces)) == len(nonces)


@pytest.mark.req("DS-CLAIM-4", "DS-CHAIN-5")
def test_claim_keeps_files_anchor_and_state_of_the_record_before(store: Store, weights: State) -> None:
    published(store, weights, files={"config.json": b"{}"})
    published(store, {name: tensor + 1 for name, tensor in weights.items()})
    one, claim = record(store, 1), record(store, 2)
    for field in ("files", "last_anchor", "requires", "schema", "state"):
        assert getattr(claim, field) == getattr(one, field)
    assert set(claim.files) == {"config.json"}


# --- What a writer does not commit -------------------------------------------------------------------


@pytest.mark.req("DS-COMMIT-7")
def test_record_that_follows_is_committed(store: Store, weights: State) -> None:
    fine = following(published(store, weights))
    store.log.commit(fine, before=store.log.require(1))
    assert record(store, 2) == fine


@pytest.mark.req("DS-COMMIT-7", "DS-LIMIT-2")
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"parent": "00" * 32}, Diverged),
        ({"term": 2}, Diverged),
        ({"step": 0}, Diverged),
        ({"state": 1}, IntegrityError),
        ({"edges": ()}, IntegrityError),
        ({"user": {str(n): n for n in range(1025)}}, IntegrityError),
        ({"user": {"text": "x" * 65536}}, IntegrityError),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_record_that_readers_would_refuse_is_not_committed(
    store: Store, weights: State, change: Mapping[str, object], error: type[IntegrityError]
) -> None:
    bad = replace(following(published(store, weights)), **change)  # type: ignore[arg-type]
    with pytest.raises(error):
        store.log.commit(bad, before=store.log.require(1))
    assert store.log.slot(2) is None


# --- Features ----------------------------------------------------------------------------------------


@pytest.mark.req("DS-FEAT-1")
def test_record_that_requires_an_unknown_feature_is_refused_by_name(store: Store, weights: State) -> None:
    after = replace(
        following(published(store, weights)), requires=Requires(read=frozenset({"sparse-shards"}))
    )
    store.access.backend.put(keys.version(2), after.to_bytes())
    with pytest.raises(UnknownFeature, match="sparse-shards"):
        consumer(store).latest()


# --- Directories -------------------------------------------------------------------------------------


@pytest.mark.req("DS-DIR-3")
@pytest.mark.parametrize(
    "name", ["model.safetensors", "Extra.SafeTensors", "model.safetensors.index.json", "deltastore.json"]
)
def test_side_file_never_takes_the_place_of_weights(
    store: Store, weights: State, tmp_path: Path, name: str
) -> None:
    after = following(published(store, weights))
    after = replace(after, files={name: store.put_object(b"not weights")})
    store.log.commit(after, before=store.log.require(1))
    with pytest.raises(BadRecord, match=r"place of weights"):
        consumer(store, tmp_path / "served").stage(2)
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == []


@pytest.mark.req("DS-DIR-1")
def test_directory_holds_weights_side_files_and_marker(store: Store, weights: State, tmp_path: Path) -> None:
    published(store, weights, files={"config.json": b"{}", "adapter/model.safetensors": b"elsewhere"})
    place = tmp_path / "served"
    info = consumer(store, place).update()
    assert info is not None
    marker = json.loads((place / "deltastore.json").read_bytes())
    assert (marker["store"], marker["version"]) == (store.identity.store, 1)
    assert marker["record_sha256"] == store.log.require(1).sha256
    assert (place / "config.json").read_bytes() == b"{}"
    again = consumer(store, place)
    assert again.update() is None or again.version == 1
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".lock"} == {"served"}
