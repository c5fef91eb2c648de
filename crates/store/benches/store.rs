//! What a record costs in time and memory, at a million records of a 16-byte key and a 100-byte value.
//!
//! Every operation goes to keys drawn from the whole key space, so that each step misses the caches as it does
//! in a server. "get" finds a record and copies its value; "set" replaces the value and keeps the digest. With
//! "versions", past states are kept, and readers follow two epochs behind the writers. The resident memory of a record
//! is printed first.

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use mimalloc::MiMalloc;
use ordain_model::key::SLOTS;
use ordain_model::{CellMut, Db, Epoch, Gsn, KeyHash, PartitionId, Position};
use ordain_store::{Entry, Keep, MemoryStore, RecordId, RecordStore, Snapshot};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const RECORDS: u64 = 1_000_000;
/// How many operations a batch of the sequencer may bring to a shard.
const BATCH: usize = 1024;
const DB: Db = Db(0);
/// How many batches of changes there are in an epoch.
const BATCHES: u64 = 10;
/// How many epochs the oldest reader is behind.
const BEHIND: u64 = 2;

fn key(i: u64) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let mut rest = i;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Keys drawn at random: the same sequence in every run.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Keys with their hashes, as the front door hands them over.
    fn keys(&mut self, n: usize) -> Vec<([u8; 16], KeyHash)> {
        let keys = (0..n).map(|_| key(self.next() % RECORDS));
        keys.map(|key| (key, KeyHash::of(&key))).collect()
    }
}

fn set(store: &mut MemoryStore, id: RecordId, version: u64, byte: u8) {
    store.edit(id, Gsn(version), |cell, changed| {
        CellMut::new(cell, changed, None).put_string(&[byte; 100]);
    });
}

#[expect(
    clippy::disallowed_methods,
    reason = "the bench measures the process, which only the system can tell"
)]
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn filled() -> MemoryStore {
    let mut store = MemoryStore::new(0..SLOTS);
    for i in 0..RECORDS {
        let key = key(i);
        let id = store.find_or_reserve(DB, &key, KeyHash::of(&key));
        set(&mut store, id, 1, i as u8);
    }
    store
}

fn benches(c: &mut Criterion) {
    let before = resident_bytes();
    let mut store = filled();
    let resident = (resident_bytes() - before) / RECORDS;
    let memory = store.memory();
    println!("{resident} bytes resident a record; accounted: {} of {memory:?}", memory.total() / RECORDS);

    let mut draw = Draw(1);
    let mut group = c.benchmark_group("one million records");
    group.throughput(Throughput::Elements(BATCH as u64));

    group.bench_function("find", |b| {
        b.iter_batched_ref(
            || draw.keys(BATCH),
            |keys| keys.iter().filter(|(key, hash)| store.find(DB, key, *hash).is_some()).count(),
            BatchSize::SmallInput,
        );
    });
    group.bench_function("find an absent key", |b| {
        b.iter_batched_ref(
            || {
                let keys = (0..BATCH).map(|_| key(RECORDS + draw.next() % RECORDS));
                keys.map(|key| (key, KeyHash::of(&key))).collect::<Vec<_>>()
            },
            |keys| keys.iter().filter(|(key, hash)| store.find(DB, key, *hash).is_some()).count(),
            BatchSize::SmallInput,
        );
    });
    for (name, group_size) in [("get", BATCH), ("get, prefetched by 16", 16)] {
        let mut out = Vec::with_capacity(BATCH * 100);
        group.bench_function(name, |b| {
            b.iter_batched_ref(
                || draw.keys(BATCH),
                |keys| {
                    out.clear();
                    for keys in keys.chunks(group_size) {
                        if group_size < BATCH {
                            store.prefetch(keys.iter().map(|(_, hash)| *hash));
                        }
                        for (key, hash) in keys {
                            if let Some(id) = store.find(DB, key, *hash) {
                                out.extend_from_slice(store.cell(id).string().unwrap_or_default());
                            }
                        }
                    }
                    black_box(out.len())
                },
                BatchSize::SmallInput,
            );
        });
    }
    for (name, group_size) in [("set", BATCH), ("set, prefetched by 16", 16)] {
        let mut version = 1;
        group.bench_function(name, |b| {
            b.iter_batched_ref(
                || draw.keys(BATCH),
                |keys| {
                    for keys in keys.chunks(group_size) {
                        if group_size < BATCH {
                            store.prefetch(keys.iter().map(|(_, hash)| *hash));
                        }
                        for (key, hash) in keys {
                            version += 1;
                            let id = store.find_or_reserve(DB, key, *hash);
                            set(&mut store, id, version, version as u8);
                        }
                    }
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.bench_function("delete and insert again", |b| {
        b.iter_batched_ref(
            || draw.keys(BATCH),
            |keys| {
                for (key, hash) in keys {
                    let id = store.find_or_reserve(DB, key, *hash);
                    store.edit(id, Gsn(1), |cell, changed| CellMut::new(cell, changed, None).delete());
                    store.release_if_absent(id);
                    let id = store.find_or_reserve(DB, key, *hash);
                    set(&mut store, id, 1, 1);
                }
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

/// A walk over a batch of records, from where the one before has stopped.
struct Walk {
    from: Position,
    records: usize,
}

impl Walk {
    fn sees(&mut self, entry: &Entry<'_>) -> bool {
        black_box(entry.cell.value.is_some());
        self.from = entry.position.next();
        self.records += 1;
        self.records < BATCH
    }

    fn next(&self) -> Position {
        if self.records < BATCH { Position(0) } else { self.from }
    }
}

/// What past states cost those who write, and those who read them.
fn versions(c: &mut Criterion) {
    let mut store = filled();
    let mut draw = Draw(1);
    let mut batches = BATCHES;
    let mut group = c.benchmark_group("versions");
    group.throughput(Throughput::Elements(BATCH as u64));
    for kept in [false, true] {
        store.keep(Keep::default());
        let name = if kept { "set with versions, prefetched by 16" } else { "set, prefetched by 16" };
        group.bench_function(name, |b| {
            b.iter_batched_ref(
                || draw.keys(BATCH),
                |keys| {
                    batches += 1;
                    let epoch = Epoch(batches / BATCHES);
                    if kept && batches.is_multiple_of(BATCHES) {
                        store.keep(Keep { since: Some(Epoch(epoch.0 - BEHIND)), ..Keep::default() });
                    }
                    let version = Gsn::new(epoch, PartitionId(0), 0);
                    for keys in keys.chunks(16) {
                        store.prefetch(keys.iter().map(|(_, hash)| *hash));
                        for (key, hash) in keys {
                            let id = store.find_or_reserve(DB, key, *hash);
                            set(&mut store, id, version.0, batches as u8);
                        }
                    }
                },
                BatchSize::SmallInput,
            );
        });
    }
    let past = store.as_of(Epoch(batches / BATCHES - 1));
    let mut out = Vec::with_capacity(BATCH * 100);
    group.bench_function("get", |b| {
        b.iter_batched_ref(
            || draw.keys(BATCH),
            |keys| {
                out.clear();
                for (key, hash) in keys {
                    if let Some(id) = store.find(DB, key, *hash) {
                        out.extend_from_slice(store.cell(id).string().unwrap_or_default());
                    }
                }
                black_box(out.len())
            },
            BatchSize::SmallInput,
        );
    });
    group.bench_function("get from a past state", |b| {
        b.iter_batched_ref(
            || draw.keys(BATCH),
            |keys| {
                out.clear();
                for (key, hash) in keys {
                    if let Some((cell, _)) = past.find(DB, key, *hash) {
                        out.extend_from_slice(cell.string().unwrap_or_default());
                    }
                }
                black_box(out.len())
            },
            BatchSize::SmallInput,
        );
    });
    let mut from = Position(0);
    group.bench_function("visit", |b| {
        b.iter(|| {
            let mut seen = Walk { from, records: 0 };
            store.visit(from, |entry| seen.sees(&entry));
            from = seen.next();
        });
    });
    group.bench_function("visit a past state", |b| {
        b.iter(|| {
            let mut seen = Walk { from, records: 0 };
            past.visit(from, |entry| seen.sees(&entry));
            from = seen.next();
        });
    });
    drop(past);
    visit_changed(&mut group, &mut store, Epoch(batches / BATCHES + 1), from);
    group.finish();
}

/// What a checkpoint costs of which all records have been changed since.
fn visit_changed(
    group: &mut BenchmarkGroup<'_, WallTime>,
    store: &mut MemoryStore,
    cut: Epoch,
    mut from: Position,
) {
    // As under much load a checkpoint finds it: every record has been changed since, in any order.
    let mut out = Vec::with_capacity(BATCH * 100);
    store.keep(Keep { cut: Some(cut), ..Keep::default() });
    let version = Gsn::new(Epoch(cut.0 + 1), PartitionId(0), 0);
    for i in 0..RECORDS {
        // An odd number has every record come once.
        let key = key(i.wrapping_mul(611_953) % RECORDS);
        let id = store.find_or_reserve(DB, &key, KeyHash::of_record(DB, &key));
        set(store, id, version.0, 1);
    }
    let past = store.as_of(cut);
    group.bench_function("visit a checkpoint of which all has changed", |b| {
        b.iter(|| {
            let mut seen = Walk { from, records: 0 };
            out.clear();
            past.visit(from, |entry| {
                out.extend_from_slice(entry.cell.string().unwrap_or_default());
                seen.sees(&entry)
            });
            from = seen.next();
        });
    });
}

/// So many records are in the large slot.
const OF_A_SLOT: u64 = 100_000;

/// What inserting costs by the order in which hashes come: at random as clients send them, and as they lie, which is how a moved
/// slot, a checkpoint or another member's state comes in. All keys of a slot, and of a store.
fn insertion(c: &mut Criterion) {
    let mut group = c.benchmark_group("insertion");
    group.sample_size(10);
    for (place, n) in [("one slot", OF_A_SLOT), ("all slots", RECORDS)] {
        let name =
            |i| if place == "one slot" { [b"{tag}".as_slice(), &key(i)].concat() } else { key(i).to_vec() };
        let mut keys: Vec<_> = (0..n).map(name).map(|key| (KeyHash::of(&key), key)).collect();
        group.throughput(Throughput::Elements(n));
        for order in ["at random", "in hash order", "in reverse"] {
            match order {
                "in hash order" => keys.sort_by_key(|(hash, _)| (hash.slot(), hash.tag())),
                "in reverse" => keys.reverse(),
                _ => {}
            }
            group.bench_function(format!("{place}, {order}"), |b| {
                b.iter_batched_ref(
                    || MemoryStore::new(0..SLOTS),
                    |store| keys.iter().for_each(|(hash, key)| _ = store.find_or_reserve(DB, key, *hash)),
                    BatchSize::PerIteration,
                );
            });
        }
    }
    group.finish();
}

criterion_group!(all, benches, versions, insertion);
criterion_main!(all);
