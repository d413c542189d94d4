"""Plants bugs in the Rust sources, one at a time: `python -m tests.core.mutants`. `twins` must notice each of them.

Each mutant is built in a copy of the sources (some seconds each) and compared with the Python body on `COUNT` inputs.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gantry_core

from tests.core import twins

SOURCES = Path(gantry_core.__file__).parent
COUNT = 60_000
MUTANTS = (
    ("records.rs", "        records += 1;\n        last_ms", "        last_ms", "records that a recovery counts"),
    (
        "records.rs",
        "        last_ms = record.stored_ms;\n        at",
        "        at",
        "the last store time of a recovery",
    ),
    ("records.rs", "segment_size, true) {", "segment_size, false) {", "the CRC of what a recovery reads"),
    ("records.rs", "V1 | V2 | BLANK)", "V1 | V2)", "fillers among whole records"),
    ("records.rs", "size <= data.len() - at =>", "size <= data.len() =>", "records that are not whole"),
    ("rows.rs", "phys != base.wrapping_add(at as i64)", "phys < 0 && base < 0", "a row's own offset"),
    ("rows.rs", "base.map_or(false, |base|", "base.map_or(true, |base|", "rows of no piece of the log"),
    ("rows.rs", "if check && (crc32", "if false && (crc32", "the CRC of a row"),
    ("rows.rs", "if flags & BORN_V6 != 0 { 12 }", "if flags & BORN_V6 != 0 { 0 }", "hosts of producers by IPv6"),
    ("rows.rs", "if flags & STORE_V6 != 0 { 12 }", "if flags & STORE_V6 != 0 { 0 }", "hosts of brokers by IPv6"),
    (
        "rows.rs",
        "usize::from(stated) != size - properties_at",
        "usize::from(stated) > size",
        "properties that fill a row",
    ),
    ("rows.rs", "    std::str::from_utf8(&record[topic_at..topic_at + topic_len]).ok()?;\n", "", "topics of a row"),
    ("rows.rs", "body_end + 4 > size", "body_end + 5 > size", "a row without topic and properties"),
    ("rows.rs", "long(record, 56 + moved)?", "long(record, 56)?", "store times behind IPv6"),
    ("rows.rs", "piece[name.len()] == NAME_END && piece", "piece", "names that begin alike"),
    ("rows.rs", ".filter(|_| at > 0)", "", "properties without a name"),
    ("rows.rs", "            self.nulls += 1;\n", "", "nulls of a column"),
    ("rows.rs", "    all.retain(|(name, _)| seen.insert(name));\n", "", "names twice among many"),
    ("rows.rs", "                all.remove(index);\n", "                index += 1;\n", "names twice"),
    ("rows.rs", "rows.len() % (8 * COLUMNS) != 0 ||", "", "rows that are none"),
    ("batch.rs", "message.body) & 0x7FFF_FFFF", "message.body) & 0x3FFF_FFFF", "CRC of a body"),
    ("batch.rs", "if after + 2 + usize::from(properties) != size", "if after + 2 > size", "properties fill a message"),
    ("batch.rs", "count > self.messages || properties.contains(&0)", "count > self.messages", "zeros"),
    ("batch.rs", "count > self.messages ||", "", "messages of a batch"),
    ("batch.rs", "> self.properties {", "> self.properties + 1 {", "bytes of properties"),
    ("batch.rs", "keys > self.all_keys + count", "keys > self.all_keys + count + 1", "keys of a batch"),
    ("batch.rs", "names.iter().any(|special| special == name)", "names.len() > 9", "special properties"),
    ("batch.rs", "room < room_min || size + FILLER_MIN > room", "size + FILLER_MIN > room", "room for a record"),
    ("batch.rs", "size + FILLER_MIN > room", "size > room", "room for a filler"),
    ("batch.rs", "        number += 1;\n", "", "queue offsets"),
    ("batch.rs", "        room -= size;\n", "", "room that is left"),
    ("batch.rs", "hash_on(0, found.tags) as i32", "hash_on(1, found.tags) as i32", "tag codes"),
    ("batch.rs", "let wide = topic.len() > 127", "let wide = topic.len() > 128", "long topics"),
    ("text.rs", "Some(at) if at > 0 => at", "Some(at) => at", "names of properties"),
    ("text.rs", ".checked_abs().unwrap_or(0)", ".wrapping_abs()", "the hash without absolute value"),
    ("text.rs", "text.encode_utf16().fold", "text.chars().map(|c| c as u16).fold", "hashes beyond the basic plane"),
    ("text.rs", "filter(|key| !key.is_empty());\n        unique", "filter(|_| true);\n        unique", "empty words"),
    ("text.rs", "words.take(most)", "words.take(most + 1)", "words of KEYS"),
    ("index.rs", "found <= 0 || found >= own", "found <= 0", "slots that point ahead"),
    ("index.rs", ".clamp(0, i64::from(i32::MAX))", ".clamp(-1, i64::from(i32::MAX))", "seconds before the first"),
    ("index.rs", "rising &= last <= time", "rising &= last < time", "times that do not rise"),
    ("records.rs", "if check && ", "if false && ", "the CRC of a record"),
    ("records.rs", "|| long(data, 28) != phys", "", "a record's own offset"),
    ("records.rs", "queue_id < 0 || number < 0 ||", "", "negative queues and queue offsets"),
    ("records.rs", "> segment_size - phys.rem_euclid(segment_size)", "> segment_size", "ends of segments"),
    ("records.rs", "size > properties_at && data[size - 1] == 0", "false", "a last byte that was not written"),
    ("records.rs", "usize::from(stated) != size - properties_at", "usize::from(stated) > size", "properties that fill"),
    ("records.rs", "flags & V6 != 0", "false", "IPv6 hosts"),
    (
        "records.rs",
        "asked.others.iter().any(|other| other == record.topic)",
        "asked.others.is_empty()",
        "topics of other rules",
    ),
    ("records.rs", "record.stored_ms < out.low_ms)", "record.stored_ms > out.low_ms)", "the lowest store time"),
    ("records.rs", "record.stored_ms != 0 && (", "(", "a store time of 0"),
    ("records.rs", "out.high_ms.max(record.stored_ms)", "record.stored_ms", "the highest store time"),
    ("columns.rs", "keys.sort_unstable();", "keys.sort_unstable_by_key(|key| key.0);", "keys by place"),
    ("columns.rs", "(8, 4), (12, 8)", "(12, 8), (8, 4)", "columns of rows"),
    ("records.rs", "kind == 0 || kind == COMMIT", "kind != ROLLBACK", "half messages in queues"),
    ("records.rs", "asked.most_keys.is_some() && kind != ROLLBACK", "asked.most_keys.is_some()", "keys of rollbacks"),
    ("records.rs", "record.stored_ms < out.last_ms", "record.stored_ms <= out.last_ms", "store times that go back"),
    ("records.rs", "count <= most)", "count < most)", "keys at once"),
    ("records.rs", "runs[*index].next == record.number", "runs[*index].queue_id >= 0", "gaps of queue offsets"),
    (
        "sends.rs",
        "(if head.code == BATCH { self.batch_frame } else { self.frame })",
        "self.batch_frame",
        "bytes of a frame",
    ),
    (
        "sends.rs",
        "(if head.code == BATCH { self.batch_frame } else { self.frame })",
        "self.frame",
        "bytes of a batch's frame",
    ),
    ("sends.rs", "|| size > self.header {", "{", "bytes of a header"),
    ("sends.rs", "(head.code != code || own != user.as_deref())", "own != user.as_deref()", "sends of two codes"),
    ("sends.rs", "(head.code != code || own != user.as_deref())", "head.code != code", "sends of two users"),
    (
        "sends.rs",
        '(found, _) => Some(found.as_deref().unwrap_or(""))',
        "(found, _) => found.as_deref()",
        "tokens alone",
    ),
    ("sends.rs", "sys_flag & TRANSACTION != 0", "false", "halves of transactions"),
    ("sends.rs", "key_count > rules.keys || stored", "stored", "words of KEYS of a send"),
    ("sends.rs", "stored > rules.properties {", "stored > rules.properties + 1 {", "bytes of a send's properties"),
    ("sends.rs", "all_keys + added.keys <= self.all_keys", "all_keys <= self.all_keys", "keys of all sends"),
    ("sends.rs", "names <= MOST_NAMES", "names < MOST_NAMES", "bytes of names"),
    ("sends.rs", "topic.len() <= MOST_TOPIC", "topic.len() < MOST_TOPIC", "bytes of a topic"),
    ("sends.rs", "digits.len() > most", "digits.len() >= most", "digits of a number"),
    ("sends.rs", "(digits.len() > 1 && digits[0] == b'0')", "false", "zeros before a number"),
    ("sends.rs", 'matches!(self.text(9), None | Some("0"))', "true", "attempts"),
    ("sends.rs", "&& self.values[11].is_none()", "", "most attempts"),
    ("sends.rs", 'matches!(self.text(12), None | Some("false"))', "true", "batches among sends"),
    ("sends.rs", "flag != Some(0) || version.is_none() || !language", "flag != Some(0)", "fields that lack in JSON"),
    ("sends.rs", "flag != 0 || remark != 0", "flag != 0", "remarks of compact headers"),
    ("sends.rs", "text.is_empty() || text.as_bytes().contains(&0)", "text.is_empty()", "zeros in a send's properties"),
    ("sends.rs", 'if value != "true" || wait.is_some()', 'if value != "true"', "two WAIT"),
    ("sends.rs", "_ if special.has(name) => return None,", "", "special properties of a send"),
    ("sends.rs", "sys_flag & !HOSTS", "sys_flag", "hosts of a send"),
    ("sends.rs", "&(crc32fast::hash(body) & 0x7FFF_FFFF)", "&crc32fast::hash(body)", "CRC of a send"),
    ("sends.rs", "let wide = topic.len() > 127", "let wide = topic.len() > 128", "long topics of sends"),
    ("sends.rs", "room < room_min || size + FILLER_MIN > room", "size + FILLER_MIN > room", "room for a send"),
    ("sends.rs", "size + FILLER_MIN > room", "size + FILLER_MIN >= room", "room for a filler behind a send"),
    ("sends.rs", "        room -= size;\n", "", "room behind a send"),
    ("sends.rs", "        *number = following;\n", "", "queue offsets of sends"),
    ("sends.rs", "    if at != made.len() {\n        return Err(wrong());\n    }\n", "", "records without rows"),
    ("sends.rs", "record[12..16].iter()", "record[8..12].iter()", "queues of answers"),
    ("sends.rs", "given.len() == GIVEN && !self.twice", "given.len() == GIVEN", "names twice in a signed send"),
    ("sends.rs", "self.others.is_empty() && code != SEND", "code != SEND", "other signed fields"),
    ("sends.rs", "self.others.is_empty() && code != SEND", "self.others.is_empty()", "the order of long names"),
    ("sends.rs", "chain(&self.token)", "chain(&None)", "signed tokens"),
    ("sends.rs", "all.sort_unstable();", "", "the order of signed fields"),
    ("sends.rs", "        made.extend_from_slice(body);\n        let size", "        let size", "signed bodies"),
    ("sends.rs", "            signed.clear();\n", "", "a send without a signature among others"),
    ("sends.rs", "all.messages == self.batch_messages || ", "", "messages of a batch among sends"),
    ("sends.rs", " || message.properties.contains(&0)", "", "zeros in a batch among sends"),
    ("sends.rs", "all.keys <= self.batch_keys +", "all.keys <= self.batch_keys + 1 +", "keys of a batch among sends"),
    ("sends.rs", "|name| !self.special.has(name)", "|_| true", "special properties of a batch among sends"),
    ("sends.rs", "all.messages > 0 && ", "", "empty batches"),
    ("sends.rs", "                    made.cut(before);\n", "", "the begin of a batch that is not plain"),
    ("sends.rs", "            mark = serialize | SAME_REQUEST;\n", "", "one answer for a batch"),
    ("sends.rs", "more[4] & SAME_REQUEST != 0", "more[..4] == place[..4]", "requests of one number"),
    ("sends.rs", '"WAIT\\x01true" | "WAIT', '"WAIT\\x01false" | "WAIT', "properties of a batch"),
    ("sends.rs", "(code == BATCH && truth(12))", "code == BATCH", "the field batch of a batch"),
    ("sends.rs", "made.add(self, request, message.flag,", "made.add(self, request, 0,", "flags in a batch"),
    ("sends.rs", "all.largest.max(added.largest)", "added.largest", "the largest record of a batch"),
    ("sends.rs", "all.least.min(added.least)", "added.least", "the smallest record of a batch"),
    ("sends.rs", "known.least.min(added.least)", "added.least", "the smallest record of a topic"),
    ("sends.rs", "all.bytes += added.bytes", "all.bytes = added.bytes", "the bytes of a batch"),
    ("sends.rs", ".filter(|count| *count >= 0)", "", "counts of keys below 0"),
    ("signature.rs", "valid |= other == 0", "valid |= other < 255", "bytes of a signature"),
    ("signature.rs", "valid |= other == 0", "valid = other == 0", "several keys"),
    ("signature.rs", "        !parts.is_empty()\n", "        true\n", "no signatures"),
    ("signature.rs", ".filter(|_| valid)", "", "wrong signatures"),
    (
        "json.rs",
        "0..=0x1F => return None,\n                _ => self.at += 1,\n            }\n        }\n        self.at",
        "_ => self.at += 1,\n            }\n        }\n        self.at",
        "control characters",
    ),
    ("json.rs", "(0xDC00..0xE000).contains(&second)", "(0xDC00..0xF000).contains(&second)", "halves of a pair"),
    ("json.rs", "(count > 1 && digits[0] == b'0')", "false", "zeros before a JSON number"),
    ("json.rs", "count > 18", "count > 20", "digits of a JSON number"),
    ("json.rs", "Some(if negative { -value } else { value })", "Some(value)", "negative numbers"),
    ("reads.rs", "stop <= end && size > 0", "stop < end && size > 0", "the last record that may be read"),
    (
        "reads.rs",
        "size > 0 && size < BLANK_SIZE && phys >= oldest",
        "size > 0 && size < BLANK_SIZE",
        "the oldest record",
    ),
    ("reads.rs", "size > 0 && size < BLANK_SIZE", "size > 0", "blanks in a queue"),
    ("reads.rs", "size > 0 && size < BLANK_SIZE", "size < BLANK_SIZE", "entries without a size"),
    ("reads.rs", "total + size > most_bytes", "total + size >= most_bytes", "bytes of an answer"),
    ("reads.rs", "count > 0 && (total", "(total", "a first record over the limit"),
    ("reads.rs", "|| phys < last)", ")", "records in the order of the log"),
    ("reads.rs", "(0..=most_gap).contains(gap) && ", "*gap >= 0 && ", "bytes between the records of a piece"),
    ("reads.rs", "(0..=most_gap).contains(gap)", "*gap <= most_gap", "pieces of records out of order"),
    ("reads.rs", " && *joined <= most_span", "", "bytes of a piece"),
    ("reads.rs", "                *total += size;\n", "", "bytes of the records of a piece"),
    ("reads.rs", "                *records += 1;\n", "", "records of a piece"),
    ("reads.rs", "&& int(record, 12)? == queue_id", "", "another queue's records"),
    ("reads.rs", "&& long(record, 20)? == number", "", "other queue offsets"),
    ("reads.rs", "&& usize::from(*length) == topic.len()", "", "longer topics"),
    ("reads.rs", "&& rest.starts_with(topic)", "", "other topics"),
    ("reads.rs", "        number = number.wrapping_add(1);\n", "", "queue offsets that follow"),
    (
        "reads.rs",
        "&& crc32fast::hash(&record[FIXED..end]) & 0x7FFF_FFFF == int(record, 8)? as u32",
        "",
        "CRC of what is read",
    ),
)
"""(file, the code, the code with the bug, what it is about)"""


def noticed(folder: Path, file: str, code: str, bug: str) -> str:
    """The difference that `twins` finds; empty: none."""
    path = folder / "gantry_core" / "src" / file
    original = path.read_text()
    if original.count(code) != 1:
        raise SystemExit(f"error: {file} has {code!r} {original.count(code)} times; one is expected")
    path.write_text(original.replace(code, bug))
    try:
        words = [
            "cargo",
            "build",
            "-q",
            "--release",
            "--locked",
            "--manifest-path",
            str(folder / "gantry_core/Cargo.toml"),
        ]
        subprocess.run(words, check=True, env=os.environ | {"CARGO_TARGET_DIR": str(folder / "target")}, cwd=folder)
    finally:
        path.write_text(original)
    made = folder / "gantry_core_native.so"
    made.unlink(missing_ok=True)
    shutil.copyfile(folder / "target/release/libgantry_core_native.so", made)
    # A process keeps a module of one name for good, so each mutant has a process of its own.
    done = subprocess.run(
        [sys.executable, "-m", "tests.core.mutants", str(made)], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        return f"it ended with {done.returncode}: {done.stderr[-300:]}"
    return done.stdout.strip()


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("gantry_core_native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    if len(sys.argv) > 1:
        other = load(sys.argv[1])
        for seed in range(COUNT):
            if said := twins.difference(seed, other):
                print(said.partition("\n")[0])
                return 1
        return 0
    missed = []
    with tempfile.TemporaryDirectory(prefix="core-mutants-") as name:
        folder = Path(name)
        shutil.copytree(SOURCES, folder / "gantry_core", ignore=shutil.ignore_patterns("target", "*.so", "__pycache__"))
        for file, code, bug, about in MUTANTS:
            said = noticed(folder, file, code, bug)
            print(f"{'noticed' if said else 'MISSED '}  {about:<40} {said[:60]}", flush=True)
            missed += [] if said else [about]
    print(f"{len(MUTANTS)} mutants, {len(missed)} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
