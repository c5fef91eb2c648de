//! The bytes of entries, and which of them count.

use ordain_fuzz::golden;
use ordain_model::{Cell, Expiry, Micros, StringForm, Value};
use proptest::prelude::*;

use super::*;
use crate::ids::TransactionId;
use crate::view::{Anti, Seen, Vector};

const NO_PLACEMENT: Placement = Placement::NONE;

fn write(db: u8, key: &[u8], cell: Cell) -> Write {
    Write::new(&NO_PLACEMENT, Db(db), key.to_vec(), cell)
}

fn string(text: &[u8]) -> Cell {
    Cell { value: Some(Value::String(text.to_vec())), ..Cell::ABSENT }
}

/// A hash with so many fields, which long ones make a table.
fn hash(fields: usize) -> Value {
    let mut hash = ordain_model::value::HashValue::default();
    for n in 0..fields {
        hash.set(format!("field{n}").as_bytes(), &[b'v'; 70][..n % 70]);
    }
    Value::Hash(Arc::new(hash))
}

/// One entry of each content, and of those that have parts one with all and one with none.
fn samples() -> Vec<(&'static str, Entry)> {
    let (term, now) = (Term(0x41 << 16 | 2), Millis(1_700_000_000_123));
    let home = Lead { partition: PartitionId(3), term };
    let attempt = AttemptId { transaction: TransactionId { home, number: 500 }, attempt: 2 };
    let other = Lead { partition: PartitionId(1), term: Term(0x80 << 16 | 1) };
    let foreign = AttemptId { transaction: TransactionId { home: other, number: 7 }, attempt: 1 };
    let age = Age::stamp(Micros(now.0 * 1_000 + 77), PartitionId(3));
    let mut seen = Seen { vector: Vector::NOTHING, anti: Anti::default() };
    seen.vector.raise(PartitionId(2), 300);
    seen.anti.add(foreign);
    let writes = vec![
        write(0, b"account:1", string(b"100")),
        write(0, b"account:2", Cell { expires_at: Millis(now.0 + 9).into(), ..string(&7_u64.to_le_bytes()) }),
        write(15, b"", Cell::ABSENT),
        write(15, b"hash", Cell { value: Some(hash(2)), ..Cell::ABSENT }),
    ];
    let changes = vec![TableChange::Clear(None), TableChange::Swap(Db(1), Db(2))];
    let holds = vec![
        Hold::Record { db: Db(0), key: b"account:2".to_vec(), mode: Mode::Exclusive },
        Hold::Record { db: Db(1), key: b"account:3\0\0".to_vec(), mode: Mode::Shared },
        Hold::Record { db: Db(1), key: b"account:4".to_vec(), mode: Mode::Blind },
        Hold::Table { shard: 4, mode: Mode::Exclusive },
    ];
    let commit = Commit {
        attempt,
        age,
        view: View::of(seen.clone()),
        low: 498,
        ceiling: Millis(now.0 + 2_000),
        session: Some((SessionId(5), RequestNo(9 << 8))),
        reply: b"+OK".to_vec(),
        changes: changes.clone(),
        writes: writes.clone(),
        participants: vec![PartitionId(0), PartitionId(7)],
    };
    let prepare = Prepare {
        attempt: foreign,
        bounds: Bounds { from: age, until: age.later(Micros(100)) },
        view: View::of(seen.clone()),
        ceiling: Millis(now.0 - 1),
        changes,
        writes,
        holds,
        among: None,
    };
    let among = Among {
        of: attempt,
        participants: vec![attempt.home(), other],
        session: Some((SessionId(5), RequestNo(9))),
        reply: b"+OK".to_vec(),
    };
    let part = Prepare { among: Some(Box::new(among)), ..prepare.clone() };
    let (none, bounds) = (Prepare { view: View::NONE, ..prepare.clone() }, Bounds::at(Age(9)));
    let none = Prepare { bounds, ceiling: Millis(0), changes: Vec::new(), writes: Vec::new(), ..none };
    let none = Prepare { holds: Vec::new(), ..none };
    let with = Commitment { stamp: Age(now.0 * 1_000 - 5), view: View::of(seen), after: 4 };
    let contents = [
        ("begin", Content::Begin),
        ("commit", Content::Commit(commit)),
        ("commit.least", Content::Commit(Commit { attempt, age: Age(12), ..Commit::default() })),
        ("prepare", Content::Prepare(prepare)),
        ("prepare.least", Content::Prepare(none)),
        ("prepare.part", Content::Prepare(part)),
        ("outcome.committed", Content::Outcome(foreign, Some(with))),
        ("outcome.committed.least", Content::Outcome(foreign, Some(Commitment::at(Age(u64::MAX))))),
        ("outcome.denied", Content::Outcome(foreign, None)),
        ("deny", Content::Deny(foreign)),
        ("forget", Content::Forget(vec![attempt, foreign])),
        ("reserve", Content::Reserve(Millis(now.0 + 2_000))),
        ("mark", Content::Mark),
        ("meet", Content::Meet(Met::Founded)),
        ("announce", Content::Announce(vec![Announced { home: other, number: 7, readers: 5.into() }])),
    ];
    let entry = |content| Entry { place: Epoch(0x0102), term, now, content, agreed: None };
    contents.map(|(name, content)| (name, entry(content))).into()
}

fn read(bytes: &[u8]) -> Option<Entry> {
    Entries::decode(&NO_PLACEMENT, bytes).ok().map(Arc::unwrap_or_clone)
}

#[test]
fn entries_have_these_bytes_and_every_truncation_is_refused() {
    let bytes_of = |(name, entry): &(&'static str, Entry)| (*name, Entries::encode(&Arc::new(entry.clone())));
    let all: Vec<(&str, Vec<u8>)> = samples().iter().map(bytes_of).collect();
    for ((name, entry), (_, bytes)) in samples().into_iter().zip(&all) {
        assert_eq!(ordain_replication::epoch_of(bytes), Some(entry.place));
        assert_eq!(read(bytes), Some(entry), "{name}");
        assert!((0..bytes.len()).all(|cut| read(&bytes[..cut]).is_none()), "{name}");
        assert_eq!(read(&[&bytes[..], &[0]].concat()), None, "{name}");
    }
    golden(concat!(env!("CARGO_MANIFEST_DIR"), "/src/entry/bytes.txt"), &all);
}

/// A mark and a reservation as they were written when numbers had a fixed size.
#[test]
fn entries_of_earlier_versions_are_refused() {
    let old = |tag: u8, rest: &[u8]| {
        [&[2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 65, 0, 0, 0, 0, 0][..], &[9; 8], &[tag], rest].concat()
    };
    for bytes in [old(7, &[]), old(6, &[9; 8])] {
        assert!(Entries::decode(&NO_PLACEMENT, &bytes).is_err_and(|why| why.contains("another version")));
    }
}

/// The regions paper's record of ten writes, and the same numbers in its form: 320 bytes of JSON (section "WAL Record").
#[test]
fn a_record_of_ten_writes_has_at_most_four_tenths_of_the_bytes_of_json() {
    let term = Term::first_of(70);
    let transaction = TransactionId { home: Lead { partition: PartitionId(1), term }, number: 400_000 };
    let now = Millis(1_764_268_000_000);
    let (mut json, mut writes) = (String::from("{\"csn\":412345,\"txn\":400000,\"writes\":["), Vec::new());
    for n in 0..10_u64 {
        let (record, value) = (n * 99_991 + 12_345, 40 + n);
        json += &format!("{{\"key\":{record},\"value\":{value}}},");
        let key = [&b"m"[..], &record.to_le_bytes()].concat();
        writes.push(write(0, &key, string(&value.to_le_bytes())));
    }
    json += "]}";
    let commit = Commit {
        attempt: AttemptId { transaction, attempt: 1 },
        age: Age(now.0 * 1_000 + 3_000),
        ceiling: Millis(now.0 + 1_000),
        writes,
        ..Commit::default()
    };
    let entry = Entry { place: Epoch(412_345), term, now, content: Content::Commit(commit), agreed: None };
    let bytes = Entries::encode(&Arc::new(entry));
    assert!((290..=320).contains(&json.len()), "{}", json.len());
    assert!(bytes.len() <= 100, "{} bytes, of which 8 are the place: {bytes:?}", bytes.len());
}

/// Texts that begin alike, and end with zeros.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let own = prop::collection::vec(any::<u8>(), 0..12);
    (0..150_usize, own, 0..18_usize)
        .prop_map(|(alike, own, zeros)| [vec![b'k'; alike], own, vec![0; zeros]].concat())
}

fn cells() -> impl Strategy<Value = Cell> {
    const FORMS: [StringForm; 3] = [StringForm::Whole, StringForm::Text, StringForm::Buffer];
    let expiry = (prop_oneof![Just(0), any::<u64>()], prop::sample::select(&FORMS[..]));
    let expiry = expiry.prop_map(|(time, form)| Expiry::NEVER.with_time(Millis(time)).with_form(form));
    prop_oneof![
        Just(Cell::ABSENT),
        (text(), expiry.clone())
            .prop_map(|(text, expires_at)| Cell { value: Some(Value::String(text)), expires_at }),
        (0..3_usize, expiry)
            .prop_map(|(n, expires_at)| Cell { value: Some(hash(n * n * n * 20)), expires_at }),
    ]
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let one = (any::<bool>(), any::<u8>(), text(), cells());
    let one = one.prop_map(|(is_first, db, key, cell)| write(if is_first { 0 } else { db }, &key, cell));
    prop::collection::vec(one, 0..6)
}

fn stamp() -> impl Strategy<Value = Age> {
    let time = 1_700_000_000_000_000..1_700_000_100_000_000_u64;
    let of_home =
        (time.clone(), 0..1024_u16).prop_map(|(time, home)| Age::stamp(Micros(time), PartitionId(home)));
    prop_oneof![time.prop_map(Age), of_home, (0..10_000_u64).prop_map(Age), any::<u64>().prop_map(Age)]
}

fn attempts() -> impl Strategy<Value = AttemptId> {
    let number = prop_oneof![0..300_u64, any::<u64>()];
    (any::<u16>(), prop_oneof![0..5_u64, any::<u64>()], number, any::<u32>()).prop_map(
        |(partition, term, number, attempt)| {
            let home = Lead { partition: PartitionId(partition), term: Term(term) };
            AttemptId { transaction: TransactionId { home, number }, attempt }
        },
    )
}

fn views() -> impl Strategy<Value = View> {
    let seen = (prop::collection::vec(any::<u64>(), 0..4), prop::collection::vec(attempts(), 0..3));
    prop::option::of(seen).prop_map(|seen| {
        let Some((numbers, readers)) = seen else { return View::NONE };
        let mut seen = Seen::NOTHING;
        numbers.into_iter().zip(0..).for_each(|(number, at)| seen.vector.raise(PartitionId(at), number));
        readers.into_iter().for_each(|who| seen.anti.add(who));
        View::of(seen)
    })
}

fn times() -> impl Strategy<Value = Millis> {
    prop_oneof![Just(0), 1_700_000_000_000..1_700_000_100_000_u64, any::<u64>()].prop_map(Millis)
}

fn changes() -> impl Strategy<Value = Vec<TableChange>> {
    prop::sample::select(vec![
        vec![],
        vec![],
        vec![TableChange::Clear(Some(Db(3))), TableChange::Swap(Db(0), Db(1))],
    ])
}

fn commits() -> impl Strategy<Value = Content> {
    let session = prop::option::of((any::<u64>(), any::<u64>()));
    let rest = (session, text(), prop::collection::vec(any::<u16>(), 0..3));
    ((attempts(), stamp(), views()), (0..2_u64, times()), (changes(), writes()), rest).prop_map(
        |((attempt, age, view), (low, ceiling), (changes, writes), (session, reply, participants))| {
            let session = session.map(|(session, request)| (SessionId(session), RequestNo(request)));
            let participants = participants.into_iter().map(PartitionId).collect();
            let low = attempt.transaction.number / 2 * low;
            Content::Commit(Commit {
                attempt,
                age,
                view,
                low,
                ceiling,
                session,
                reply,
                changes,
                writes,
                participants,
            })
        },
    )
}

fn prepares() -> impl Strategy<Value = Content> {
    const MODES: [Mode; 3] = [Mode::Shared, Mode::Exclusive, Mode::Blind];
    let hold = (prop::sample::select(&MODES[..]), 0..4_usize, any::<u8>(), text());
    let holds = prop::collection::vec(hold, 0..5);
    let bounds = (stamp(), prop_oneof![Just(None), Just(Some(Age(u64::MAX))), stamp().prop_map(Some)]);
    let session = prop::option::of((any::<u64>(), any::<u64>()));
    let among = prop::option::of((attempts(), prop::collection::vec(attempts(), 0..3), session, text()));
    ((attempts(), bounds, views()), times(), (changes(), writes()), (holds, among)).prop_map(
        |((attempt, (from, until), view), ceiling, (changes, writes), (holds, among))| {
            let hold = |(mode, which, number, key): (Mode, usize, u8, Vec<u8>)| match (which, writes.first())
            {
                (0, _) => Hold::Table { shard: u16::from(number), mode },
                (1, Some(write)) => Hold::Record { db: write.db, key: write.key.clone(), mode },
                _ => Hold::Record { db: Db(number), key, mode },
            };
            let holds = holds.into_iter().map(hold).collect();
            let bounds = Bounds { from, until: until.unwrap_or(from.next()) };
            let among = among.map(|(of, others, session, reply)| {
                let participants = others.into_iter().map(|of| of.home()).collect();
                let session = session.map(|(session, request)| (SessionId(session), RequestNo(request)));
                Box::new(Among { of, participants, session, reply })
            });
            Content::Prepare(Prepare { attempt, bounds, view, ceiling, changes, writes, holds, among })
        },
    )
}

fn contents() -> impl Strategy<Value = Content> {
    let with = prop::option::of((stamp(), views(), any::<u64>()));
    let outcome = (attempts(), with).prop_map(|(attempt, with)| {
        let with = with.map(|(stamp, view, after)| Commitment { stamp, view, after });
        Content::Outcome(attempt, with)
    });
    let announced = (attempts(), any::<u64>()).prop_map(|(of, number)| Announced {
        home: of.home(),
        number,
        readers: of.transaction.number.into(),
    });
    prop_oneof![
        4 => commits(),
        4 => prepares(),
        1 => outcome,
        1 => attempts().prop_map(Content::Deny),
        1 => prop::collection::vec(attempts(), 0..4).prop_map(Content::Forget),
        1 => times().prop_map(Content::Reserve),
        1 => prop::collection::vec(announced, 0..3).prop_map(Content::Announce),
        1 => prop::sample::select(vec![Content::Begin, Content::Mark, Content::Meet(Met::Ready)]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn an_entry_is_read_as_it_was_written_and_no_part_of_it(
        content in contents(), (place, term) in any::<(u64, u64)>(), now in times(),
    ) {
        let entry = Entry { place: Epoch(place), term: Term(term), now, content, agreed: None };
        let bytes = Entries::encode(&Arc::new(entry.clone()));
        prop_assert_eq!(read(&bytes), Some(entry.clone()));
        let step = bytes.len() / 200 + 1;
        prop_assert!((0..bytes.len()).step_by(step).all(|cut| read(&bytes[..cut]).is_none()));
        for bit in (0..bytes.len() * 8).step_by(step * 7) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let at = bit / 8;
            let around = &bytes[at.saturating_sub(12)..(at + 12).min(bytes.len())];
            prop_assert!(read(&flipped).as_ref() != Some(&entry), "bit {bit} of {} bytes, about {around:?}", bytes.len());
        }
    }

    /// The place may be any, and the tag is one of ours: else all noise would be refused at once.
    #[test]
    fn noise_is_read_or_refused(tag in 31..43_u8, rest in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = read(&[&[0; 8][..], &[tag], &rest].concat());
    }
}

#[test]
fn an_entry_counts_in_its_own_term_alone() {
    let entry = |term, content, agreed| Entry { place: Epoch(1), term, now: Millis(0), content, agreed };
    let (first, deny) = (Term::first_of(2), Content::Deny(AttemptId::default()));
    let mut terms = Terms::default();
    assert!(!terms.take(&entry(first, deny.clone(), Some(2))), "the term has not begun");
    assert!(terms.take(&entry(first, Content::Begin, Some(2))));
    assert!(terms.take(&entry(first, deny.clone(), Some(2))));
    assert!(!terms.take(&entry(first, deny.clone(), Some(3))), "another leader's log has brought it about");
    assert!(!terms.take(&entry(first, Content::Begin, Some(2))), "a term begins once");
    assert!(terms.take(&entry(first.next(), Content::Begin, Some(2))));
    assert!(!terms.take(&entry(first, deny.clone(), Some(2))), "its proposer has begun anew");
    assert!(terms.take(&entry(first.next(), deny, Some(2))));
    assert_eq!((terms.last(), terms.last().of_group()), (first.next(), 2));
    let mut noted = Arc::new(entry(first, Content::Begin, None));
    Entries::note_term(&mut noted, 3);
    assert_eq!(noted.agreed, Some(3));
}
