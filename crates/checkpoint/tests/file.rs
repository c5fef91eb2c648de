//! A checkpoint comes back as it was written, and is refused if it is not: cut anywhere, any bit of it flipped, of another
//! cluster, layout, partition, epoch or version.

use ordain_checkpoint::{
    Arriving, CheckpointError, Encoder, Header, Item, Kind, Outcome, Piece, Seal, file_name, list, read,
    read_header, seal_name, verify,
};
use ordain_log::MemoryDirectory;
use ordain_model::value::record_hash;
use ordain_model::{
    Abort, Cell, Db, Digest, Epoch, Expiry, Gsn, HashValue, KeyHash, Layout, Map, Millis, OutcomeStatus,
    PartitionId, RequestNo, SessionId, Value,
};
use ordain_role::{Bytes, Directory, DiskOp};
use proptest::prelude::*;

const EPOCH: Epoch = Epoch(0x1234);

/// What a checkpoint may hold, apart from it.
#[derive(Clone, Debug, PartialEq)]
enum Thing {
    Record(Db, Vec<u8>, Cell, Gsn),
    Outcome(u64, u64, u64, OutcomeStatus, Vec<u8>),
    Input(Vec<u8>),
    Map(Map),
}

fn thing(item: &Item<'_>) -> Thing {
    match item.clone() {
        Item::Record { db, key, cell, version } => Thing::Record(db, key.to_vec(), cell, version),
        Item::Outcome(Outcome { session, request, gsn, status, reply }) => {
            Thing::Outcome(session.0, request.0, gsn.0, status, reply.to_vec())
        }
        Item::Input(bytes) => Thing::Input(bytes.to_vec()),
        Item::Map(map) => Thing::Map(map),
    }
}

fn piece(things: &[Thing]) -> Option<Piece> {
    let kind = match things.first()? {
        Thing::Record(..) => Kind::Records,
        Thing::Outcome(..) => Kind::Outcomes,
        Thing::Input(bytes) => return Some(Piece::input(bytes.clone())),
        Thing::Map(map) => return Some(Piece::map(map)),
    };
    let mut piece = Piece::new(kind);
    for thing in things {
        match thing {
            Thing::Record(db, key, cell, version) => piece.push_record(*db, key, cell, *version),
            Thing::Outcome(session, request, gsn, status, reply) => piece.push_outcome(&Outcome {
                session: SessionId(*session),
                request: RequestNo(*request),
                gsn: Gsn(*gsn),
                status: *status,
                reply,
            }),
            Thing::Input(_) | Thing::Map(_) => {}
        }
    }
    Some(piece)
}

fn header() -> Header {
    Header::new(b"cluster", &Layout::single(2), PartitionId(0), EPOCH)
}

/// The layout of two partitions with these prefixes.
fn regions(eu: &str, us: &str) -> Layout {
    let prefixes = [eu, us].map(|all| all.split(' ').map(|prefix| prefix.as_bytes().to_vec()).collect());
    Layout::even(2, 1).expect("a layout").in_regions(prefixes.to_vec()).expect("prefixes that differ")
}

/// The header of a partition that has every record of [`small`], by the prefixes of its region or by their hashes.
fn placed() -> Header {
    let mine = PartitionId(u16::from(KeyHash::of(b"").slot() >= 512));
    let [eu, us] = if mine.0 == 0 { ["a", "us: ca:"] } else { ["us: ca:", "a"] };
    Header::new(b"cluster", &regions(eu, us), mine, EPOCH)
}

/// The bytes of a whole file.
fn file(header: &Header, pieces: &[Vec<Thing>]) -> Vec<u8> {
    let (mut encoder, first) = Encoder::begin(header);
    let mut bytes = first.as_ref().to_vec();
    for piece in pieces.iter().filter_map(|things| piece(things)) {
        encoder.frame(piece).iter().for_each(|part| bytes.extend_from_slice(part.as_ref()));
    }
    assert_eq!(encoder.written(), bytes.len() as u64);
    encoder.end().0.iter().for_each(|part| bytes.extend_from_slice(part.as_ref()));
    bytes
}

fn put(disk: &mut MemoryDirectory, file: &str, bytes: &[u8]) {
    let write = |data| DiskOp::Write { file: file.to_owned(), offset: 0, data };
    disk.apply(&DiskOp::Create { file: file.to_owned(), len: 0 }).expect("a new file");
    disk.apply(&write(vec![Bytes::from(bytes.to_vec())])).expect("an endless disk");
}

fn disk(bytes: &[u8]) -> MemoryDirectory {
    let mut disk = MemoryDirectory::new();
    put(&mut disk, &file_name(EPOCH), bytes);
    disk
}

fn small() -> Vec<Vec<Thing>> {
    let cell = |value, expires_at| Cell { value: Some(value), expires_at: Millis(expires_at).into() };
    let mut hash = HashValue::default();
    hash.set(b"field", b"value");
    vec![
        vec![
            Thing::Record(Db(0), b"a".to_vec(), cell(Value::String(b"one".to_vec()), 0), Gsn(77)),
            Thing::Record(Db(15), b"".to_vec(), cell(Value::Hash(hash.into()), 99), Gsn(78)),
        ],
        vec![Thing::Outcome(5, 256, 77, OutcomeStatus::Committed, b"reply".to_vec())],
        vec![Thing::Input(b"input".to_vec())],
    ]
}

#[test]
fn every_cut_of_a_file_is_unfinished() {
    [header(), placed()].iter().for_each(every_cut_is_unfinished);
}

fn every_cut_is_unfinished(header: &Header) {
    let whole = file(header, &small());
    assert!(read(&disk(&whole), header, |_| Ok(())).is_ok());
    for len in 0..whole.len() {
        let cut = disk(&whole[..len]);
        let refused = read(&cut, header, |_| Ok(()));
        let wanted = CheckpointError::Unfinished { file: file_name(EPOCH), len: len as u64 };
        assert_eq!(refused, Err(wanted.clone()), "{len} of {}", whole.len());
        assert_eq!(verify(&cut, EPOCH).map(|_| ()), Err(wanted));
    }
}

/// The items shown of a file whose bytes come in pieces of this length, and its end.
fn arrive(whole: &[u8], len: usize) -> (Vec<Thing>, Result<(), CheckpointError>) {
    let (mut arriving, mut shown) = (Arriving::new(EPOCH), Vec::new());
    let taken = whole.chunks(len).try_for_each(|bytes| {
        arriving.take(
            bytes,
            |_| Ok(()),
            |item| {
                shown.push(thing(&item));
                Ok(())
            },
        )
    });
    (shown, taken.and_then(|()| arriving.end().map(drop)))
}

#[test]
fn a_file_that_arrives_in_pieces_shows_what_it_holds_and_its_damage_is_seen() {
    for header in [header(), placed()] {
        let whole = file(&header, &small());
        let all: Vec<Thing> = small().into_iter().flatten().collect();
        for len in [1, 7, 512, 600, whole.len()] {
            assert_eq!(arrive(&whole, len), (all.clone(), Ok(())), "in pieces of {len}");
        }
        for len in 0..whole.len() {
            let (_, end) = arrive(&whole[..len], 50);
            let wanted = CheckpointError::Unfinished { file: file_name(EPOCH), len: len as u64 };
            assert_eq!(end, Err(wanted));
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(arrive(&flipped, 90).1.is_err(), "bit {bit}");
        }
        let (_, longer) = arrive(&[&whole[..], b"x"].concat(), 90);
        assert!(matches!(longer, Err(CheckpointError::Damaged { .. })), "{longer:?}");
        let mut arriving = Arriving::new(EPOCH);
        let refused = arriving.take(
            &whole,
            |found| if *found == header { Err("not this one".to_owned()) } else { Ok(()) },
            |_| panic!("something was shown"),
        );
        assert!(matches!(refused, Err(CheckpointError::Refused { .. })), "{refused:?}");
    }
}

#[test]
fn every_flipped_bit_of_a_file_is_seen_where_it_is() {
    [header(), placed()].iter().for_each(every_flipped_bit_is_seen);
}

fn every_flipped_bit_is_seen(header: &Header) {
    let whole = file(header, &small());
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        match read(&disk(&flipped), header, |_| Ok(())) {
            // The version is looked at first: another one may be laid out in another way.
            Err(CheckpointError::Version { .. }) => assert!((8..12).contains(&(bit / 8)), "bit {bit}"),
            // 3 becomes 2 with a bit, which is read too: then the checksum is wrong.
            Err(CheckpointError::Damaged { offset, .. }) => {
                let is_other_version = (8..12).contains(&(bit / 8)) && (bit, whole[8]) != (64, 3);
                assert!(offset <= bit as u64 / 8 && !is_other_version, "bit {bit}: {offset}");
            }
            other => panic!("bit {bit}: {other:?}"),
        }
    }
}

#[test]
fn a_frame_left_out_doubled_or_of_another_file_is_seen() {
    let whole = file(&header(), &small());
    let without = file(&header(), &small()[1..]);
    let first = whole.len() - without.len();
    let (head, rest) = whole.split_at(512);
    let spliced = [head, &rest[first..]].concat();
    assert!(matches!(read(&disk(&spliced), &header(), |_| Ok(())), Err(CheckpointError::Damaged { .. })));
    let doubled = [head, &rest[..first], rest].concat();
    assert!(matches!(read(&disk(&doubled), &header(), |_| Ok(())), Err(CheckpointError::Damaged { .. })));
    let longer = [&whole[..], b"x"].concat();
    let offset = whole.len() as u64;
    assert!(matches!(
        read(&disk(&longer), &header(), |_| Ok(())),
        Err(CheckpointError::Damaged { offset: at, .. }) if at == offset
    ));
    let other = file(&Header { epoch: Epoch(9), ..header() }, &small());
    let spliced = [head, &other[512..]].concat();
    assert!(matches!(read(&disk(&spliced), &header(), |_| Ok(())), Err(CheckpointError::Damaged { .. })));
}

#[test]
fn what_is_of_something_else_is_refused_by_name() {
    let refused = |written: &Header| {
        let disk = disk(&file(written, &small()));
        read(&disk, &header(), |_| panic!("something was shown")).map(|_| ())
    };
    let file = file_name(EPOCH);
    let other = Header { identity: b"other".to_vec(), ..header() };
    assert_eq!(refused(&other), Err(CheckpointError::Identity { file }));
    for written in [
        Header { layout: 2, ..header() },
        Header { partitions: 2, ..header() },
        Header { partition: PartitionId(1), ..header() },
        Header { slots: 0..1000, ..header() },
    ] {
        assert!(matches!(refused(&written), Err(CheckpointError::Layout { .. })), "{written:?}");
    }
    let renamed = Header { epoch: Epoch(3), ..header() };
    assert!(matches!(refused(&renamed), Err(CheckpointError::Damaged { offset: 0, .. })));
    // Whosever it is, it can be looked at.
    let disk = disk(&self::file(&other, &small()));
    assert_eq!(verify(&disk, EPOCH).map(|(header, _)| header), Ok(other.clone()));
    assert_eq!(read_header(&disk, EPOCH), Ok(other));
}

#[test]
fn what_was_written_with_other_prefixes_is_refused() {
    let (whole, mine) = (file(&placed(), &small()), placed().partition);
    assert_eq!((whole[8], file(&header(), &small())[8]), (4, 3), "versions");
    assert_eq!(read_header(&disk(&whole), EPOCH), Ok(placed()));
    assert_eq!(verify(&disk(&whole), EPOCH).map(|(header, _)| header), Ok(placed()));
    for layout in [Layout::even(2, 1).unwrap(), regions("us: ca: a", "b"), regions("us:", "a")] {
        let expected = Header::new(b"cluster", &layout, mine, EPOCH);
        let refused = read(&disk(&whole), &expected, |_| panic!("something was shown"));
        let text = refused.as_ref().unwrap_err().to_string();
        assert!(matches!(refused, Err(CheckpointError::Layout { .. })), "{text}");
        assert!(text.contains("[\"ca:\", \"us:\"]") && text.contains("the cluster's file"), "{text}");
    }
    // A record is placed by the prefixes of the file.
    let other = if mine.0 == 0 { regions("us:", "a") } else { regions("a", "us:") };
    let other = Header::new(b"cluster", &other, mine, EPOCH);
    let stray = verify(&disk(&file(&other, &small())), EPOCH);
    assert!(matches!(stray, Err(CheckpointError::Damaged { reason, .. }) if reason.contains("slots")));
    // A version that has prefixes, and none follow.
    let mut without = whole[..512].to_vec();
    let plain = file(&Header { placement: ordain_model::Placement::NONE, ..placed() }, &[]);
    without.extend_from_slice(&plain[512..]);
    let refused = read(&disk(&without), &placed(), |_| Ok(()));
    assert!(matches!(refused, Err(CheckpointError::Damaged { offset: 512, .. })), "{refused:?}");
}

#[test]
fn a_record_of_slots_that_are_not_the_partitions_is_refused() {
    let layout = Layout::even(2, 1).unwrap();
    let mine = PartitionId(u16::from(KeyHash::of(b"a").slot() < 512));
    let header = Header::new(b"cluster", &layout, mine, EPOCH);
    let cell = Cell { value: Some(Value::String(Vec::new())), expires_at: Millis(0).into() };
    let pieces = [vec![Thing::Record(Db(0), b"a".to_vec(), cell, Gsn(1))]];
    let refused = read(&disk(&file(&header, &pieces)), &header, |_| Ok(()));
    assert!(matches!(refused, Err(CheckpointError::Damaged { offset: 512, .. })), "{refused:?}");
}

#[test]
fn whoever_is_shown_it_may_refuse_it() {
    let whole = disk(&file(&header(), &small()));
    let refused = read(&whole, &header(), |_| Err("no".to_owned()));
    assert_eq!(
        refused,
        Err(CheckpointError::Refused { file: file_name(EPOCH), offset: 512, reason: "no".to_owned() })
    );
}

#[test]
fn only_what_is_sealed_is_complete() {
    let mut disk = MemoryDirectory::new();
    let seal = |epoch| Seal { epoch, at: Millis(7) };
    put(&mut disk, "log-0000000000000001.seg", b"");
    put(&mut disk, &file_name(Epoch(1)), b"whatever");
    put(&mut disk, &file_name(Epoch(2)), b"whatever");
    put(&mut disk, &seal_name(Epoch(2)), &seal(Epoch(2)).encode());
    put(&mut disk, &seal_name(Epoch(3)), &seal(Epoch(3)).encode());
    put(&mut disk, &file_name(Epoch(4)), b"whatever");
    put(&mut disk, &seal_name(Epoch(4)), &seal(Epoch(4)).encode()[..20]);
    put(&mut disk, &file_name(Epoch(5)), b"whatever");
    put(&mut disk, &seal_name(Epoch(5)), &seal(Epoch(4)).encode());
    let found = list(&disk).unwrap();
    let complete: Vec<(u64, bool)> = found.iter().map(|f| (f.epoch.0, f.is_complete())).collect();
    assert_eq!(complete, [(1, false), (2, true), (3, false), (4, false), (5, false)]);
    assert_eq!(found[1].seal, Some(seal(Epoch(2))));
    assert_eq!(found[1].files, [seal_name(Epoch(2)), file_name(Epoch(2))]);
}

fn value() -> impl Strategy<Value = Value> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let fields = prop::collection::vec((bytes(), bytes()), 1..200);
    let hash = (fields, any::<bool>()).prop_map(|(fields, had_long)| {
        let mut hash = HashValue::default();
        if had_long {
            hash.set(&[7; 99], b"");
            hash.remove(&[7; 99]);
        }
        fields.iter().for_each(|(field, value)| {
            hash.set(field, value);
        });
        Value::Hash(hash.into())
    });
    prop_oneof![4 => bytes().prop_map(Value::String), 1 => hash]
}

fn things() -> impl Strategy<Value = Vec<Thing>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let record =
        (any::<u8>(), bytes(), value(), any::<u64>(), any::<u64>()).prop_map(|(db, key, value, at, by)| {
            Thing::Record(
                Db(db),
                key,
                Cell { value: Some(value), expires_at: Expiry::from_bits(at) },
                Gsn(by),
            )
        });
    let status = prop_oneof![
        Just(OutcomeStatus::Committed),
        Just(OutcomeStatus::Superseded),
        Just(OutcomeStatus::Aborted(Abort::Conflict)),
    ];
    let outcome = (any::<u64>(), any::<u64>(), any::<u64>(), status, bytes()).prop_map(
        |(session, request, gsn, status, reply)| Thing::Outcome(session, request, gsn, status, reply),
    );
    prop_oneof![
        prop::collection::vec(record, 1..20),
        prop::collection::vec(outcome, 1..20),
        bytes().prop_map(|input| vec![Thing::Input(input)]),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(pieces in prop::collection::vec(things(), 0..20)) {
        let disk = disk(&file(&header(), &pieces));
        let mut seen = Vec::new();
        let totals = read(&disk, &header(), |item| {
            seen.push(thing(&item));
            Ok(())
        }).unwrap();
        let all: Vec<Thing> = pieces.concat();
        let (mut records, mut outcomes, mut digest) = (0, 0, Digest::default());
        for thing in &all {
            match thing {
                Thing::Record(db, key, cell, _) => {
                    records += 1;
                    digest.add(record_hash(*db, key, cell.value.as_ref().unwrap(), cell.expires_at));
                }
                Thing::Outcome(..) => outcomes += 1,
                Thing::Input(_) | Thing::Map(_) => {}
            }
        }
        prop_assert_eq!(seen, all);
        prop_assert_eq!((totals.records, totals.outcomes, totals.digest), (records, outcomes, digest));
        prop_assert_eq!(verify(&disk, EPOCH).map(|(_, totals)| totals), Ok(totals));
    }
}

/// Of slots that were moved, a frame says where they are, and only then the records.
#[test]
fn a_partition_has_the_slots_that_its_map_says() {
    let layout = Layout::even(2, 1).unwrap();
    let header = Header::new(b"cluster", &layout, PartitionId(1), EPOCH);
    let key = (0..).map(|i: u32| i.to_le_bytes()).find(|key| KeyHash::of(key).slot() == 100).unwrap();
    let cell = Cell { value: Some(Value::String(b"value".to_vec())), expires_at: Millis(0).into() };
    let record = vec![Thing::Record(Db(0), key.to_vec(), cell, Gsn(3))];
    let moved = layout.moved(&(100..101), PartitionId(1)).unwrap();
    let map = vec![Thing::Map(moved.map().clone())];
    let seen = |pieces: &[Vec<Thing>], header: &Header| {
        let mut seen = Vec::new();
        let disk = disk(&file(header, pieces));
        read(&disk, header, |item| (seen.push(thing(&item)), Ok(())).1).map(|_| seen)
    };
    assert_eq!(seen(&[map.clone(), record.clone()], &header), Ok([&map[..], &record].concat()));
    let stray = |found: Result<Vec<Thing>, CheckpointError>| {
        matches!(found, Err(CheckpointError::Damaged { reason: "a record of another partition's slots", .. }))
    };
    assert!(stray(seen(std::slice::from_ref(&record), &header)));
    let first = Header::new(b"cluster", &layout, PartitionId(0), EPOCH);
    assert!(stray(seen(&[map, record.clone()], &first)));
    assert!(seen(&[record], &first).is_ok());
}
