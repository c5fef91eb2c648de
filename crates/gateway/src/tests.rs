//! The gateway by itself: what it submits, and whom it answers.

mod cluster;
mod direct;
mod streams;

use std::sync::Arc;

use ordain_model::args::encode;
use ordain_model::procedure::{FragmentContext, Known, Procedure, Reconnaissance};
use ordain_model::wire::Codec as _;
use ordain_model::{
    Abort, Access, Args, ArgsBuilder, Call, Cell, Chunk, ChunkNo, Datum, Db, Effect, Fragment, GatewayId,
    Gsn, OutcomeBatch, OutcomeStatus, PartitionId, PlanError, Planner, ProcedureId, Reads, Registry,
    RequestNo, SessionId, Snapshot, Stamp, Token, Value, View, Writer, system,
};

use crate::submit::MAX_CHUNK;
use crate::{Departure, Gateway, MAX_RESTARTS, Path, Stream, Ticket};

/// Chunks that are to be sequenced, and nothing else.
trait Orders {
    fn next_order(&mut self) -> Option<(PartitionId, Arc<Chunk>)>;
}

impl Orders for Gateway {
    fn next_order(&mut self) -> Option<(PartitionId, Arc<Chunk>)> {
        self.flush().map(|departure| match departure {
            Departure::Order(home, chunk) => (home, chunk),
            other => panic!("{other:?}"),
        })
    }
}

/// Reads a pointer, then whatever it names; refuses a pointer that names nothing good.
const FOLLOW: ProcedureId = ProcedureId(900);

struct Follow;

impl Procedure for Follow {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        system::plan_validation(planner, &mut items, 0)?;
        items.try_for_each(|key| planner.key(1, Access::Write, key).map(drop))
    }

    fn run(&self, _code: u16, _cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        Ok(())
    }

    fn is_dependent(&self) -> bool {
        true
    }

    fn reconnoitre(&self, args: Args<'_>, known: &Known) -> Result<Reconnaissance, PlanError> {
        let pointer = args.get(0).ok_or(PlanError::SYNTAX)?;
        let Some(seen) = known.reads.iter().find(|e| e.key == pointer) else {
            return Ok(Reconnaissance::Read(vec![(Db(0), pointer.to_vec())]));
        };
        let target = seen.cell.string().ok_or(PlanError::fixed("ERR the pointer names nothing"))?;
        let mut ready = Vec::new();
        let mut args = ArgsBuilder::new(&mut ready);
        system::validation_args([(seen.db, &*seen.key, seen.version)].into_iter(), &mut args);
        args.push(target);
        Ok(Reconnaissance::Ready(ready))
    }
}

/// Asks [`TELL`] what follows from its key, twice if the first answer says so, and writes all that it was told.
const CONSULT: ProcedureId = ProcedureId(901);
/// Only reads.
const TELL: ProcedureId = ProcedureId(902);

struct Consult;

impl Procedure for Consult {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        args.iter().try_for_each(|key| planner.key(0, Access::Write, key).map(drop))
    }

    fn run(&self, _code: u16, _cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        Ok(())
    }

    fn is_dependent(&self) -> bool {
        true
    }

    fn reconnoitre(&self, args: Args<'_>, known: &Known) -> Result<Reconnaissance, PlanError> {
        let told: Vec<&[u8]> =
            known.answers.iter().filter_map(|answer| Datum::first(answer).as_bytes()).collect();
        if told.is_empty() || told == [b"go on"] {
            let key = told.last().copied().or(args.get(0)).ok_or(PlanError::SYNTAX)?;
            return Ok(Reconnaissance::Ask(TELL, encode(&[key])));
        }
        Ok(Reconnaissance::Ready(encode(&told)))
    }
}

struct Tell;

impl Procedure for Tell {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        args.iter().try_for_each(|key| planner.key(0, Access::Read, key).map(drop))
    }

    fn run(&self, _code: u16, _cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        Ok(())
    }
}

/// Reads its keys or writes them, as its first argument says, and computes something from all.
const EITHER: ProcedureId = ProcedureId(903);

struct Either;

impl Procedure for Either {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let access = match args.get(0) {
            Some(b"w") => Access::Write,
            Some(b"r") => Access::Read,
            _ => return Err(PlanError::SYNTAX),
        };
        let keys = args.iter().skip(1).map(|key| planner.key(0, access, key));
        let slots = keys.collect::<Result<Vec<_>, _>>()?;
        for _ in 0..2 {
            planner.compute(1, planner.hash_of(b"near"))?;
            slots.iter().for_each(|slot| planner.input(*slot));
        }
        Ok(())
    }

    fn run(&self, _code: u16, _cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        Ok(())
    }
}

fn gateway() -> Gateway {
    let mut registry = Registry::default();
    system::register(&mut registry);
    registry.register(FOLLOW, "follow", Arc::new(Follow));
    registry.register(CONSULT, "consult", Arc::new(Consult));
    registry.register(TELL, "tell", Arc::new(Tell));
    registry.register(EITHER, "either", Arc::new(Either));
    Gateway::alone(GatewayId(3), Arc::new(registry))
}

fn read(gateway: &mut Gateway, ticket: u64) {
    let call = Call::new(system::READ, Db(0));
    gateway.submit(Ticket(ticket), call, |args| system::read_args([(Db(0), &b"k"[..])], args)).unwrap();
}

fn follow(gateway: &mut Gateway, ticket: u64) -> Result<(), PlanError> {
    let session = Some((SessionId(5), RequestNo(9)));
    gateway.submit(Ticket(ticket), Call { session, ..Call::new(FOLLOW, Db(0)) }, |args| {
        args.push(b"p");
    })
}

fn consult(gateway: &mut Gateway, ticket: u64) {
    let session = Some((SessionId(5), RequestNo(9)));
    let call = Call { session, ..Call::new(CONSULT, Db(3)) };
    gateway.submit(Ticket(ticket), call, |args| _ = args.push(b"first")).unwrap();
}

fn bulk(text: &str) -> Vec<u8> {
    let mut reply = Vec::new();
    Writer(&mut reply).bulk(text.as_bytes());
    reply
}

/// What the only transaction that waits to be submitted is, with its arguments.
fn next(gateway: &mut Gateway) -> (ProcedureId, Vec<u8>) {
    let chunk = only(gateway);
    let txn = &chunk.txns()[0];
    (txn.call.procedure, chunk.args(txn).encoded().to_vec())
}

/// Answers one transaction and returns what was finished by that: ticket, status, reply.
fn answer(
    gateway: &mut Gateway,
    (chunk, index): (u64, u32),
    status: OutcomeStatus,
    reply: &[u8],
) -> Vec<(u64, OutcomeStatus, Vec<u8>)> {
    let mut batch = OutcomeBatch::new(GatewayId(3));
    batch.push(ChunkNo(chunk), index, Gsn(77), status, |out| out.extend_from_slice(reply));
    let mut finished = Vec::new();
    gateway.take_outcomes(&batch, |f| finished.push((f.ticket.0, f.status, f.reply.to_vec())));
    finished
}

const COMMITTED: OutcomeStatus = OutcomeStatus::Committed;
const RESTART: OutcomeStatus = OutcomeStatus::Aborted(Abort::Restart);

/// The reply of the read of a pointer.
fn pointer_reply(target: Option<&str>, version: u64) -> Vec<u8> {
    let mut image = Vec::new();
    cell(target).encode(&mut image);
    let mut reply = Vec::new();
    let mut w = Writer(&mut reply);
    w.array(3);
    w.int(1_000);
    w.int(version as i64);
    w.bulk(&image);
    reply
}

/// The reply of an attempt that found the pointer changed.
fn restart_reply(target: Option<&str>, version: u64) -> Vec<u8> {
    let mut image = Vec::new();
    cell(target).encode(&mut image);
    let mut reply = Vec::new();
    let mut w = Writer(&mut reply);
    w.array(4);
    w.int(0);
    w.bulk(b"p");
    w.int(version as i64);
    w.bulk(&image);
    reply
}

fn cell(target: Option<&str>) -> Cell {
    Cell { value: target.map(|t| Value::String(t.into())), ..Cell::ABSENT }
}

/// The only transaction of the only chunk that waits to be submitted.
fn only(gateway: &mut Gateway) -> Arc<Chunk> {
    let (_, chunk) = gateway.next_order().expect("a chunk");
    assert_eq!((chunk.txns().len(), gateway.next_order().is_none()), (1, true));
    chunk
}

#[test]
fn each_request_is_answered_once_whatever_comes() {
    let mut gateway = gateway();
    assert!(gateway.next_order().is_none());
    (0..3).for_each(|ticket| read(&mut gateway, ticket));
    let (_, chunk) = gateway.next_order().unwrap();
    assert_eq!((chunk.gateway, chunk.number, chunk.txns().len()), (GatewayId(3), ChunkNo(0), 3));
    assert!(gateway.next_order().is_none());
    read(&mut gateway, 3);
    assert_eq!(gateway.next_order().unwrap().1.number, ChunkNo(1));
    assert_eq!(gateway.outstanding(), 4);
    // In any order, and over chunks.
    assert_eq!(answer(&mut gateway, (1, 0), COMMITTED, b"x"), [(3, COMMITTED, b"x".to_vec())]);
    assert_eq!(answer(&mut gateway, (0, 2), OutcomeStatus::Busy, b""), [(2, OutcomeStatus::Busy, vec![])]);
    // Twice, of the future, of an index that there is not, of a chunk that is done.
    for nobody in [(1, 0), (0, 2), (9, 0), (0, 3)] {
        assert!(answer(&mut gateway, nobody, COMMITTED, b"y").is_empty());
    }
    assert_eq!(answer(&mut gateway, (0, 0), COMMITTED, b"a").len(), 1);
    assert_eq!(answer(&mut gateway, (0, 1), COMMITTED, b"b").len(), 1);
    assert!(answer(&mut gateway, (0, 1), COMMITTED, b"b").is_empty());
    assert_eq!(gateway.outstanding(), 0);
    // Numbers go on.
    read(&mut gateway, 4);
    assert_eq!(gateway.next_order().unwrap().1.number, ChunkNo(2));
}

#[test]
fn a_refused_request_leaves_nothing_behind() {
    let mut gateway = gateway();
    read(&mut gateway, 0);
    let call = Call::new(system::READ, Db(0));
    assert!(gateway.submit(Ticket(1), call, |args| _ = args.push(b"half a pair")).is_err());
    let session = Some((SessionId(1), RequestNo(RequestNo::LARGEST + 1)));
    assert!(gateway.submit(Ticket(2), Call { session, ..call }, |_| {}).is_err());
    assert!(gateway.submit(Ticket(3), Call::new(FOLLOW, Db(0)), |_| {}).is_err());
    read(&mut gateway, 4);
    assert_eq!(gateway.outstanding(), 2);
    assert_eq!(gateway.next_order().unwrap().1.txns().len(), 2);
    assert_eq!(answer(&mut gateway, (0, 1), COMMITTED, b""), [(4, COMMITTED, vec![])]);
}

#[test]
fn a_chunk_is_closed_when_it_is_large_enough() {
    let mut gateway = gateway();
    (0..MAX_CHUNK as u64 + 1).for_each(|ticket| read(&mut gateway, ticket));
    let sizes: Vec<usize> =
        std::iter::from_fn(|| gateway.next_order()).map(|(_, chunk)| chunk.txns().len()).collect();
    assert_eq!(sizes, [MAX_CHUNK, 1]);
    assert_eq!(answer(&mut gateway, (1, 0), COMMITTED, b""), [(MAX_CHUNK as u64, COMMITTED, vec![])]);
    // Or heavy enough.
    let big = vec![b'v'; 6 << 20];
    let cell = Cell { value: Some(Value::String(big)), ..Cell::ABSENT };
    for ticket in 0..4 {
        let call = Call::new(system::COMMIT, Db(0));
        let write = |args: &mut ArgsBuilder<'_>| {
            system::commit_args([].into_iter(), [(Db(0), &b"k"[..], &cell)], args);
        };
        gateway.submit(Ticket(ticket), call, write).unwrap();
    }
    let sizes: Vec<usize> =
        std::iter::from_fn(|| gateway.next_order()).map(|(_, chunk)| chunk.txns().len()).collect();
    assert_eq!(sizes, [3, 1]);
}

#[test]
fn a_dependent_request_reads_first_and_then_runs_with_what_it_saw() {
    let mut gateway = gateway();
    follow(&mut gateway, 8).unwrap();
    let reading = only(&mut gateway);
    assert_eq!(reading.txns()[0].call.procedure, system::READ);
    assert!(reading.txns()[0].call.session.is_none(), "the reading is not the request");
    assert!(answer(&mut gateway, (0, 0), COMMITTED, &pointer_reply(Some("t"), 40)).is_empty());
    assert_eq!(gateway.outstanding(), 1);
    let real = only(&mut gateway);
    let txn = &real.txns()[0];
    assert_eq!(txn.call.session, Some((SessionId(5), RequestNo(9 << 8))));
    let reads = [&1u32.to_le_bytes()[..], &[0], b"p", &40u64.to_le_bytes(), b"t"];
    assert_eq!(real.args(txn).encoded(), encode(&reads));
    assert_eq!(answer(&mut gateway, (1, 0), COMMITTED, b"done"), [(8, COMMITTED, b"done".to_vec())]);
    assert_eq!(gateway.outstanding(), 0);
}

/// The reading has used what is undone: nobody else is to hear of that, as it has no effect.
#[test]
fn a_reading_that_aborts_in_a_cascade_is_done_again() {
    let mut gateway = gateway();
    follow(&mut gateway, 8).unwrap();
    let cascade = OutcomeStatus::Aborted(Abort::Cascade);
    for attempt in 0..u64::from(MAX_RESTARTS) {
        assert_eq!(only(&mut gateway).txns()[0].call.procedure, system::READ);
        assert!(answer(&mut gateway, (attempt, 0), cascade, b"").is_empty());
    }
    let last = u64::from(MAX_RESTARTS);
    assert_eq!(only(&mut gateway).txns()[0].call.procedure, system::READ);
    assert_eq!(answer(&mut gateway, (last, 0), cascade, b"enough"), [(8, cascade, b"enough".to_vec())]);
    assert_eq!(gateway.outstanding(), 0);
    // What it was made for is its client's to ask for again.
    follow(&mut gateway, 9).unwrap();
    only(&mut gateway);
    answer(&mut gateway, (last + 1, 0), COMMITTED, &pointer_reply(Some("t"), 1));
    only(&mut gateway);
    assert_eq!(answer(&mut gateway, (last + 2, 0), cascade, b"x"), [(9, cascade, b"x".to_vec())]);
}

#[test]
fn a_stale_reconnaissance_is_repeated_so_many_times_and_no_more() {
    let mut gateway = gateway();
    follow(&mut gateway, 8).unwrap();
    only(&mut gateway);
    answer(&mut gateway, (0, 0), COMMITTED, &pointer_reply(Some("t"), 1));
    for attempt in 0..u64::from(MAX_RESTARTS) {
        let chunk = only(&mut gateway);
        let txn = &chunk.txns()[0];
        // Each attempt is a request of its own to the sequencer, and all of them one to the session.
        assert_eq!(txn.call.session, Some((SessionId(5), RequestNo(9 << 8 | attempt))));
        assert_eq!(chunk.args(txn).get(3), Some(&(attempt + 1).to_le_bytes()[..]), "the fresh version");
        let reply = restart_reply(Some("elsewhere"), attempt + 2);
        assert!(answer(&mut gateway, (attempt + 1, 0), RESTART, &reply).is_empty());
    }
    only(&mut gateway);
    let last = answer(&mut gateway, (u64::from(MAX_RESTARTS) + 1, 0), RESTART, &restart_reply(None, 99));
    let mut text = Vec::new();
    Writer(&mut text).abort(Abort::Restart);
    assert_eq!(last, [(8, RESTART, text)], "the client is told to retry, and not shown the records");
    assert!(gateway.next_order().is_none());
    assert_eq!(gateway.outstanding(), 0);
}

#[test]
fn what_is_not_in_a_record_is_asked() {
    let mut gateway = gateway();
    consult(&mut gateway, 8);
    let asking = only(&mut gateway);
    let txn = &asking.txns()[0];
    assert_eq!((txn.call, txn.read_only), (Call::new(TELL, Db(3)), true), "the asking is not the request");
    assert_eq!(asking.args(txn).encoded(), encode(&["first"]));
    assert!(answer(&mut gateway, (0, 0), COMMITTED, &bulk("go on")).is_empty());
    assert_eq!(next(&mut gateway), (TELL, encode(&["go on"])));
    assert!(answer(&mut gateway, (1, 0), COMMITTED, &bulk("then")).is_empty());
    // Every answer is known, in order.
    assert_eq!(next(&mut gateway), (CONSULT, encode(&["go on", "then"])));
    // The reply of a restart is the fresh answer, in place of all: nothing is asked again.
    assert!(answer(&mut gateway, (2, 0), RESTART, &bulk("rather this")).is_empty());
    let again = only(&mut gateway);
    let txn = &again.txns()[0];
    assert_eq!(again.args(txn).encoded(), encode(&["rather this"]));
    assert_eq!(txn.call.session, Some((SessionId(5), RequestNo(9 << 8 | 1))));
    // Whoever asked is told how often it was started over.
    let mut batch = OutcomeBatch::new(GatewayId(3));
    batch.push(ChunkNo(3), 0, Gsn(77), COMMITTED, |out| out.extend_from_slice(b"done"));
    let mut finished = Vec::new();
    gateway.take_outcomes(&batch, |f| finished.push((f.ticket.0, f.restarts, f.reply.to_vec())));
    assert_eq!(finished, [(8, 1, b"done".to_vec())]);
    assert_eq!((gateway.outstanding(), gateway.next_order().is_none()), (0, true));
}

#[test]
fn a_question_that_is_not_answered_ends_the_request() {
    let mut gateway = gateway();
    for (number, status) in
        [OutcomeStatus::Aborted(Abort::Logic), OutcomeStatus::Aborted(Abort::Restart), OutcomeStatus::Busy]
            .into_iter()
            .enumerate()
    {
        consult(&mut gateway, 1);
        only(&mut gateway);
        let ended = answer(&mut gateway, (number as u64, 0), status, &bulk("no"));
        assert_eq!((ended.len(), ended[0].1), (1, status));
        assert_eq!((gateway.outstanding(), gateway.next_order().is_none()), (0, true));
    }
    // A restart that says nothing ends it too.
    consult(&mut gateway, 1);
    only(&mut gateway);
    answer(&mut gateway, (3, 0), COMMITTED, &bulk("then"));
    only(&mut gateway);
    assert_eq!(answer(&mut gateway, (4, 0), RESTART, b"").len(), 1);
    assert_eq!((gateway.outstanding(), gateway.next_order().is_none()), (0, true));
}

#[test]
fn a_dependent_request_may_end_in_the_middle() {
    // Refused by what it has read.
    let mut gateway = gateway();
    let mut text = Vec::new();
    Writer(&mut text).error("ERR the pointer names nothing");
    gateway.submit(Ticket(1), Call::new(FOLLOW, Db(0)), |args| _ = args.push(b"p")).unwrap();
    only(&mut gateway);
    let refused = answer(&mut gateway, (0, 0), COMMITTED, &pointer_reply(None, 0));
    assert_eq!(refused, [(1, OutcomeStatus::Aborted(Abort::Logic), text.clone())]);
    // Not even read: the pipeline is full.
    follow(&mut gateway, 2).unwrap();
    only(&mut gateway);
    let busy = answer(&mut gateway, (1, 0), OutcomeStatus::Busy, b"busy");
    assert_eq!(busy, [(2, OutcomeStatus::Busy, b"busy".to_vec())]);
    // Refused after a restart: an earlier attempt may not have been, and the order knows.
    follow(&mut gateway, 3).unwrap();
    only(&mut gateway);
    answer(&mut gateway, (2, 0), COMMITTED, &pointer_reply(Some("t"), 1));
    only(&mut gateway);
    assert_eq!(answer(&mut gateway, (3, 0), RESTART, &restart_reply(None, 2)), []);
    let stand_in = only(&mut gateway);
    let txn = &stand_in.txns()[0];
    let next = Some((SessionId(5), RequestNo((9 << 8) + 1)));
    assert_eq!((txn.call.procedure, txn.call.session, txn.read_only), (system::REFUSE, next, false));
    assert_eq!(stand_in.args(txn).get(0), Some(&b"ERR the pointer names nothing"[..]));
    assert_eq!(answer(&mut gateway, (4, 0), COMMITTED, &text), [(3, COMMITTED, text)]);
    assert_eq!((gateway.outstanding(), gateway.next_order().is_none()), (0, true));
}

#[test]
fn whoever_is_answered_may_ask_again_at_once() {
    let mut gateway = gateway();
    read(&mut gateway, 0);
    gateway.next_order();
    let mut batch = OutcomeBatch::new(GatewayId(3));
    batch.push(ChunkNo(0), 0, Gsn(1), COMMITTED, |_| {});
    let mut answered = 0;
    gateway.take_outcomes_with(&batch, |gateway, _| {
        answered += 1;
        read(gateway, 1);
    });
    assert_eq!((answered, gateway.outstanding()), (1, 1));
    assert_eq!(gateway.next_order().unwrap().1.number, ChunkNo(1));
    assert_eq!(answer(&mut gateway, (1, 0), COMMITTED, b""), [(1, COMMITTED, vec![])]);
}

/// Whether the last one of its procedure read or wrote, a transaction is planned as if it were alone, and it is put where
/// those of its kind are.
#[test]
fn what_reads_and_what_writes_are_told_apart_whatever_came_before() {
    let mut gateway = gateway().with_reads(Reads::Session);
    let registry = gateway.registry().clone();
    let call = Call::new(EITHER, Db(1));
    let asks = ["w a b", "r c", "r d e", "x", "w", "w f", "r g h i", "r", "x j", "r k", "w l", "r m"];
    for (n, ask) in (0..).zip(asks) {
        let write = |args: &mut ArgsBuilder<'_>| ask.split(' ').for_each(|arg| _ = args.push(arg.as_bytes()));
        // Some are to see an epoch of which nobody has heard: they are alone in their chunk.
        let view = View::Since(Token::of(n % 2));
        let path = gateway.submit_to(Ticket(n), call, view, write);
        let expected = match &ask[..1] {
            "r" => Ok(Path::Snapshot),
            "w" if ask == "w" => Ok(Path::Snapshot),
            "w" => Ok(Path::Order),
            _ => Err(PlanError::SYNTAX),
        };
        assert_eq!(path, expected, "{ask}");
    }
    let (mut read, mut ordered) = (Vec::new(), Vec::new());
    while let Some(departure) = gateway.flush() {
        let Some(chunk) = departure.chunk().cloned() else { panic!("{departure:?}") };
        let (logged, unlogged) = (chunk.logged().to_vec(), chunk.unlogged().to_vec());
        let again = Chunk::rebuild(&registry, chunk.gateway, logged, unlogged).unwrap();
        assert_eq!(again.txns().len(), chunk.txns().len());
        for (txn, expected) in chunk.txns().iter().zip(again.txns()) {
            let [plan, alone] = [(&*chunk, txn), (&again, expected)].map(|(chunk, txn)| {
                let fragments = chunk.fragments(txn).iter();
                let shown = |fragment: &Fragment| {
                    (fragment.hash, fragment.access, chunk.plans().inputs_of(fragment).to_vec())
                };
                (txn.index, chunk.record(txn).to_vec(), fragments.map(shown).collect::<Vec<_>>())
            });
            assert_eq!(plan, alone);
            let words: Vec<String> =
                chunk.args(txn).iter().map(|arg| String::from_utf8_lossy(arg.bytes).into_owned()).collect();
            let to = if matches!(departure, Departure::Read(..)) { &mut read } else { &mut ordered };
            to.push(words.join(" "));
        }
    }
    read.sort();
    ordered.sort();
    assert_eq!(read, ["r", "r c", "r d e", "r g h i", "r k", "r m", "w"]);
    assert_eq!(ordered, ["w a b", "w f", "w l"]);
}

/// What the chunks of reads are to see that wait to be submitted, and how many transactions they have.
fn snapshots(gateway: &mut Gateway) -> Vec<(Snapshot, usize)> {
    std::iter::from_fn(|| gateway.flush())
        .filter_map(|departure| match departure {
            Departure::Read(chunk, snapshot) => Some((snapshot, chunk.txns().len())),
            _ => None,
        })
        .collect()
}

#[test]
fn tokens_are_merged_and_passed_on_whatever_they_are() {
    let mut gateway = gateway().with_reads(Reads::Session);
    let vector = |numbers: &[u64], mark: u128| Token::of_vector(numbers, [mark]);
    let read = |gateway: &mut Gateway, stream: u32, ticket: u64, seen: &Token| {
        let view = View::Since(seen.clone());
        let submitted =
            gateway.submit_in_order(Stream(stream), Ticket(ticket), Call::new(EITHER, Db(1)), view, |args| {
                args.push(b"r").push(b"k");
            });
        assert_eq!(submitted, Ok(Path::Snapshot));
    };
    // Nobody here has heard of what the second has seen: it is read alone.
    read(&mut gateway, 1, 1, &Token::NOTHING);
    read(&mut gateway, 2, 2, &vector(&[0, 5], 9));
    let alone = [(Snapshot::Published(Token::NOTHING), 1), (Snapshot::Published(vector(&[0, 5], 9)), 1)];
    assert_eq!(snapshots(&mut gateway), alone);
    // Each stream goes on with what it was told; what both have seen is asked for together.
    let mut batch = OutcomeBatch::new(GatewayId(3));
    for (chunk, token) in [(0, vector(&[4], 1)), (1, vector(&[2, 6, 1], 2))] {
        let effect = Effect { stamp: Stamp::new(7), token };
        batch.push(ChunkNo(chunk), 0, effect, COMMITTED, |out| Writer(out).ok());
    }
    let mut seen = Vec::new();
    gateway.take_outcomes(&batch, |finished| seen.push((finished.ticket.0, finished.token.clone())));
    assert_eq!(seen, [(1, vector(&[4], 1)), (2, vector(&[2, 6, 1], 2))]);
    read(&mut gateway, 1, 3, &Token::NOTHING);
    read(&mut gateway, 2, 4, &Token::NOTHING);
    let both = Token::of_vector(&[4, 6, 1], [1, 2]);
    assert_eq!(snapshots(&mut gateway), [(Snapshot::Published(both), 2)]);
    assert_eq!(gateway.outstanding(), 2);
}
