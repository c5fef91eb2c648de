//! The sequencer, the exchange and their messages by themselves: each is given events and its outbox is looked at.

mod cluster;
mod exchange;
mod founding;
mod messages;

use std::sync::Arc;

use ordain_log::{LogConfig, LogWriter, MemoryDirectory, carry_out};
use ordain_model::{
    Batch, Call, Cell, Chunk, ChunkNo, Db, Epoch, Front, GatewayId, Gsn, Layout, Micros, Millis,
    OutcomeStatus, PartitionId, PauseNo, Placed, Position, Registry, RequestNo, SessionId, Snapshot, Value,
    VirtualShard, system,
};
use ordain_replication::Covered;
use ordain_role::{Address, Bytes, Directory, Event, NodeId, Now, Outbox, Role, TimerId};

use crate::sequencing::{Log, Message, Neighbours, Readers, Sequencer, Sequencing, Sessions, Settings};

type Sent = Vec<(Address, Message<()>)>;

const LOG: Address = at(1);
const SHARDS: [Address; 2] = [at(16), at(17)];
const GATEWAY: Address = at(128);

const fn at(role: u16) -> Address {
    Address { node: NodeId(0), role }
}

fn registry() -> Arc<Registry> {
    let mut registry = Registry::default();
    system::register(&mut registry);
    Arc::new(registry)
}

/// What a client asks for.
#[derive(Clone, Copy)]
enum Ask {
    Read,
    Write(Option<(u64, u64)>),
}

fn chunk(number: u64, asks: &[Ask]) -> Arc<Chunk> {
    let registry = registry();
    let mut chunk = Chunk::new(GatewayId(0), ChunkNo(number));
    let cell = Cell { value: Some(Value::String(b"v".to_vec())), expires_at: Millis(0).into() };
    for ask in asks {
        let pushed = match ask {
            Ask::Read => chunk.push(&registry, Call::new(system::READ, Db(0)), |args| {
                system::read_args([(Db(0), &b"k"[..])], args);
            }),
            Ask::Write(session) => {
                let session = session.map(|(session, request)| (SessionId(session), RequestNo(request)));
                chunk.push(&registry, Call { session, ..Call::new(system::COMMIT, Db(0)) }, |args| {
                    system::commit_args([].into_iter(), [(Db(0), &b"k"[..], &cell)], args);
                })
            }
        };
        pushed.unwrap();
    }
    Arc::new(chunk)
}

struct Bench {
    sequencer: Sequencer<()>,
    now: Now,
}

impl Bench {
    fn new(settings: Settings) -> Bench {
        let (me, executors) = (Address::default(), SHARDS.to_vec());
        let readers =
            Readers { layout: Arc::new(Layout::single(executors.len())), shards: executors.clone() };
        let neighbours =
            Neighbours { me, log: LOG, executors, exchange: None, gateways: GATEWAY.role, readers };
        let now = Now { elapsed: Micros(0), wall: Micros::from_millis(5000) };
        Bench { sequencer: Sequencer::new(settings, registry(), neighbours, false), now }
    }

    fn event(&mut self, event: Event<Message<()>>) -> Outbox<Message<()>> {
        let mut out = Outbox::default();
        self.sequencer.handle(self.now, event, &mut out);
        self.sequencer.check().unwrap();
        out
    }

    fn tell(&mut self, from: Address, message: impl Into<Message<()>>) -> Sent {
        self.event(Event::Message { from, message: message.into() }).sends
    }

    fn submit(&mut self, number: u64, asks: &[Ask]) -> Sent {
        self.tell(GATEWAY, Front::Submit(chunk(number, asks)))
    }

    /// The log has taken the batch, and the shards have executed it; returns what the sequencer sends upon that.
    fn finish(&mut self, epoch: Epoch) -> Sent {
        let mut sent = self.tell(LOG, Log::Logged(epoch));
        for shard in SHARDS {
            sent.extend(self.tell(shard, Sequencing::Applied { epoch, partition: PartitionId(0) }));
        }
        sent
    }
}

/// The one batch that was sent to the log.
fn batch_of(sent: &Sent) -> Arc<Batch> {
    let batches: Vec<&Arc<Batch>> = sent
        .iter()
        .filter_map(|(to, message)| match message {
            Message::Log(Log::Append(batch)) if *to == LOG => Some(batch),
            _ => None,
        })
        .collect();
    assert_eq!(batches.len(), 1, "{sent:?}");
    batches[0].clone()
}

/// The outcomes that went to the gateway: chunk, index, status.
fn outcomes_of(sent: &Sent) -> Vec<(u64, u32, OutcomeStatus)> {
    let mut all = Vec::new();
    for (to, message) in sent {
        if let Message::Front(Front::Outcomes(outcomes)) = message {
            assert_eq!(*to, GATEWAY);
            assert_eq!(outcomes.bytes(), 0, "what was not sequenced has a status and no reply");
            all.extend(outcomes.outcomes.iter().map(|o| (o.chunk.0, o.index, o.status)));
        }
    }
    all
}

const WRITE: Ask = Ask::Write(None);

#[test]
fn a_lone_request_is_sequenced_at_once_and_the_rest_gathers_behind_it() {
    let mut bench = Bench::new(Settings::default());
    let first = batch_of(&bench.submit(0, &[WRITE]));
    assert_eq!((first.epoch, first.total, first.now), (Epoch(1), 1, Millis(5000)));
    assert!(bench.submit(1, &[WRITE, Ask::Read]).is_empty());
    assert!(bench.submit(2, &[WRITE]).is_empty());
    let second = batch_of(&bench.tell(LOG, Log::Logged(Epoch(1))));
    assert_eq!((second.epoch, second.total), (Epoch(2), 3));
    let order: Vec<u64> = second.chunks.iter().map(|placed| placed.chunk.number.0).collect();
    assert_eq!(order, [1, 2]);
    let gsns: Vec<u32> = second.txns().map(|(gsn, ..)| gsn.index()).collect();
    assert_eq!(gsns, [0, 1, 2]);
    // An answer about another epoch is none about this one.
    assert!(bench.submit(3, &[WRITE]).is_empty());
    assert!(bench.tell(LOG, Log::Logged(Epoch(1))).is_empty());
}

#[test]
fn a_batch_is_capped_and_nothing_is_dropped() {
    let mut bench = Bench::new(Settings { batch_cap: 4, ..Settings::default() });
    batch_of(&bench.submit(0, &[WRITE]));
    for number in 1..=3 {
        bench.submit(number, &[WRITE; 3]);
    }
    bench.submit(4, &[WRITE; 9]);
    let mut totals = Vec::new();
    for epoch in 1..=4 {
        totals.push(batch_of(&bench.finish(Epoch(epoch))).total);
    }
    // A chunk is not cut in two, so one that is larger than the cap is a batch by itself.
    assert_eq!(totals, [3, 3, 3, 9]);
    assert!(bench.finish(Epoch(5)).is_empty());
}

#[test]
fn a_batch_holds_no_more_bytes_than_it_may_but_for_one_large_chunk() {
    let bytes = chunk(0, &[WRITE; 3]).bytes();
    let mut bench = Bench::new(Settings { batch_bytes: 2 * bytes, ..Settings::default() });
    batch_of(&bench.submit(0, &[WRITE; 9]));
    for number in 1..=3 {
        bench.submit(number, &[WRITE; 3]);
    }
    bench.submit(4, &[WRITE; 9]);
    let mut totals = Vec::new();
    for epoch in 1..=3 {
        totals.push(batch_of(&bench.finish(Epoch(epoch))).total);
    }
    assert_eq!(totals, [6, 3, 9]);
}

#[test]
fn a_pause_is_answered_at_once() {
    let mut bench = Bench::new(Settings::default());
    bench.submit(0, &[WRITE]);
    let sent = bench.tell(GATEWAY, Front::Pause(PauseNo(7)));
    let [(to, Message::Front(Front::Continue(PauseNo(7))))] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(*to, GATEWAY);
}

#[test]
fn no_batch_is_closed_while_a_shard_is_too_far_behind() {
    let mut bench = Bench::new(Settings { lag_max: 2, ..Settings::default() });
    batch_of(&bench.submit(0, &[WRITE]));
    bench.submit(1, &[WRITE]);
    batch_of(&bench.tell(LOG, Log::Logged(Epoch(1))));
    bench.submit(2, &[WRITE]);
    assert!(bench.tell(LOG, Log::Logged(Epoch(2))).is_empty());
    assert!(
        bench.tell(SHARDS[0], Sequencing::Applied { epoch: Epoch(2), partition: PartitionId(0) }).is_empty()
    );
    assert_eq!(
        batch_of(&bench.tell(SHARDS[1], Sequencing::Applied { epoch: Epoch(1), partition: PartitionId(0) }))
            .epoch,
        Epoch(3)
    );
}

#[test]
fn beyond_the_backlog_a_chunk_is_answered_with_busy() {
    let mut bench = Bench::new(Settings { backlog_max: 3, ..Settings::default() });
    batch_of(&bench.submit(0, &[WRITE]));
    assert!(bench.submit(1, &[WRITE; 2]).is_empty());
    let busy = outcomes_of(&bench.submit(2, &[WRITE; 2]));
    assert_eq!(busy, [(2, 0, OutcomeStatus::Busy), (2, 1, OutcomeStatus::Busy)]);
    // What fits is taken, and once the batch is closed there is room again.
    assert!(bench.submit(3, &[WRITE]).is_empty());
    assert_eq!(batch_of(&bench.finish(Epoch(1))).total, 3);
    assert!(bench.submit(4, &[WRITE; 3]).is_empty());
}

#[test]
fn an_open_batch_lingers_until_its_timer_or_its_cap_and_never_past_the_lag() {
    let linger = Micros::from_millis(2);
    let mut bench = Bench::new(Settings { linger, batch_cap: 3, lag_max: 1, ..Settings::default() });
    let out =
        bench.event(Event::Message { from: GATEWAY, message: Front::Submit(chunk(0, &[WRITE])).into() });
    let [(timer, Some(delay))] = out.timers[..] else { panic!("{:?}", out.timers) };
    assert_eq!((delay, out.sends.len()), (linger, 0));
    let out = bench.event(Event::Timer(timer));
    assert_eq!(batch_of(&out.sends).total, 1);
    // The timer fires while the shards are behind: it must not close.
    bench.tell(LOG, Log::Logged(Epoch(1)));
    bench.submit(1, &[WRITE]);
    assert!(bench.event(Event::Timer(timer)).sends.is_empty());
    for shard in SHARDS {
        assert!(
            bench.tell(shard, Sequencing::Applied { epoch: Epoch(1), partition: PartitionId(0) }).is_empty()
        );
    }
    assert_eq!(batch_of(&bench.submit(2, &[WRITE; 2])).total, 3, "the cap is reached");
    assert!(bench.event(Event::Timer(TimerId(77))).sends.is_empty());
}

#[test]
fn time_does_not_go_back_with_the_wall_clock() {
    let mut bench = Bench::new(Settings::default());
    assert_eq!(batch_of(&bench.submit(0, &[WRITE])).now, Millis(5000));
    bench.finish(Epoch(1));
    bench.now.wall = Micros::from_millis(10);
    assert_eq!(batch_of(&bench.submit(1, &[WRITE])).now, Millis(5000));
    bench.finish(Epoch(2));
    bench.now.wall = Micros::from_millis(6000);
    assert_eq!(batch_of(&bench.submit(2, &[WRITE])).now, Millis(6000));
    // Nor over a restart.
    let mut again = Bench::new(Settings::default());
    let mut last = Batch { epoch: Epoch(9), layout: 1, now: Millis(7000), ..Batch::default() };
    last.chunks.push(Placed::whole(0, chunk(0, &[Ask::Write(Some((1, 4)))])));
    again.sequencer.replay(&last);
    again.sequencer.resume_after(Epoch(100));
    let batch = batch_of(&again.submit(0, &[Ask::Write(Some((1, 4))), Ask::Write(Some((1, 5)))]));
    assert_eq!((batch.epoch, batch.now), (Epoch(101), Millis(7000)));
    // What the log held is known.
    assert_eq!((batch.lookups.len(), batch.txns().count()), (1, 1));
}

#[test]
fn a_session_is_asked_about_and_not_repeated() {
    let mut bench = Bench::new(Settings::default());
    let ask = |request| Ask::Write(Some((7, request)));
    // Twice in one batch, and one that comes after a later one.
    let batch = batch_of(&bench.submit(0, &[ask(2), ask(2), ask(1), ask(0), ask(3), Ask::Read]));
    assert_eq!(batch.chunks[0].skipped, [1, 2, 3]);
    let asked: Vec<u64> = batch.lookups.iter().map(|lookup| lookup.request.0).collect();
    assert_eq!(asked, [2, 1, 0]);
    bench.finish(Epoch(1));
    let batch = batch_of(&bench.submit(1, &[ask(3), ask(4)]));
    assert_eq!((batch.lookups.len(), batch.txns().count()), (1, 1));
    assert_eq!(batch.lookups[0].chunk, ChunkNo(1));
    bench.finish(Epoch(2));
    // Request 0 of a session that nobody knows of is new.
    assert!(batch_of(&bench.submit(2, &[Ask::Write(Some((8, 0)))])).lookups.is_empty());
}

#[test]
fn a_rejected_batch_keeps_its_reads_and_its_epoch() {
    let mut bench = Bench::new(Settings { lag_max: 1, ..Settings::default() });
    let ask = |request| Ask::Write(Some((7, request)));
    let batch = batch_of(&bench.submit(0, &[ask(1), Ask::Read, ask(1), WRITE]));
    let sent = bench.tell(LOG, Log::Rejected(batch.clone()));
    let mut refused = outcomes_of(&sent);
    refused.sort_unstable_by_key(|(_, index, _)| *index);
    assert_eq!(refused, [0, 2, 3].map(|index| (0, index, OutcomeStatus::Refused)));
    let reads = batch_of(&sent);
    assert!(!reads.is_logged() && reads.lookups.is_empty());
    let left: Vec<Gsn> = reads.txns().map(|(gsn, ..)| gsn).collect();
    assert_eq!(left, [Gsn::new(batch.epoch, PartitionId(0), 1)]);
    // The mark for it finds the disk full as well: everything is told so, and the next one may come.
    let refused = outcomes_of(&bench.tell(LOG, Log::Rejected(reads)));
    assert_eq!(refused, [(0, 1, OutcomeStatus::Refused)]);
    for _ in 0..10 {
        let batch = batch_of(&bench.submit(1, &[Ask::Read]));
        assert_eq!(batch.epoch, Epoch(1));
        assert_eq!(outcomes_of(&bench.tell(LOG, Log::Rejected(batch))).len(), 1);
    }
    // A refused request is not known: with space again it is done, once.
    bench.tell(LOG, Log::Writable);
    let batch = batch_of(&bench.submit(2, &[ask(1), ask(1)]));
    assert_eq!((batch.lookups.len(), batch.txns().count()), (1, 1));
}

/// The epoch of a refused batch is given to the next one, so there must be no later batch in the log.
#[test]
fn a_log_that_refuses_a_batch_and_has_a_later_one_stops_the_node() {
    let mut bench = Bench::new(Settings { in_log_max: 2, ..Settings::default() });
    let first = batch_of(&bench.submit(0, &[WRITE]));
    bench.now.elapsed = Micros::from_millis(10);
    batch_of(&bench.submit(1, &[WRITE]));
    let mut out = Outbox::default();
    let message = Log::Rejected(first).into();
    bench.sequencer.handle(bench.now, Event::Message { from: LOG, message }, &mut out);
    assert!(out.halt.is_some_and(|reason| reason.contains("although it has epoch 2 too")));
}

/// The positions of some slots.
fn slots(first: usize, end: usize) -> std::ops::Range<Position> {
    Position::of_slot(first)..Position::of_slot(end)
}

#[test]
fn while_the_disk_is_full_only_reads_and_retries_are_sequenced() {
    let mut bench = Bench::new(Settings::default());
    let ask = |request| Ask::Write(Some((7, request)));
    batch_of(&bench.submit(0, &[ask(1)]));
    bench.finish(Epoch(1));
    let batch = batch_of(&bench.submit(1, &[WRITE]));
    let reads = batch_of(&bench.tell(LOG, Log::Rejected(batch)));
    bench.finish(reads.epoch);
    // A sweep would be a write, and so would a move of slots.
    assert!(bench.tell(SHARDS[0], Sequencing::Expired { positions: slots(0, 32) }).is_empty());
    let uneven = Sequencing::Uneven(PartitionId(0), vec![(7, Some(VirtualShard(64)))]);
    assert!(bench.tell(SHARDS[0], uneven.clone()).is_empty());
    let sent = bench.submit(2, &[ask(1), ask(2), Ask::Read, ask(2)]);
    assert_eq!(outcomes_of(&sent), [(2, 1, OutcomeStatus::Refused), (2, 3, OutcomeStatus::Refused)]);
    let batch = batch_of(&sent);
    assert_eq!((batch.lookups.len(), batch.txns().count(), batch.is_logged()), (1, 1, false));
    bench.finish(batch.epoch);
    bench.tell(LOG, Log::Writable);
    // The same slots are swept now, though they could not be before.
    let sweep = batch_of(&bench.tell(SHARDS[0], Sequencing::Expired { positions: slots(0, 32) }));
    assert!(sweep.is_logged());
    // Once: until the batch is closed they need not be asked for again.
    bench.tell(SHARDS[1], Sequencing::Expired { positions: slots(512, 544) });
    bench.tell(SHARDS[1], Sequencing::Expired { positions: slots(512, 544) });
    let other = batch_of(&bench.finish(sweep.epoch));
    assert_eq!(other.total, 1);
    bench.finish(other.epoch);
    let balance = batch_of(&bench.tell(SHARDS[0], uneven));
    let (_, chunk, txn) = balance.txns().next().unwrap();
    assert!(txn.logged && txn.table && chunk.gateway == GatewayId::HOUSE);
    let after = system::rearranged(txn.call.procedure, chunk.args(txn), &Layout::single(2)).unwrap();
    assert_eq!((Layout::single(2).shard_of(7), after.shard_of(7)), (0, 1));
}

#[test]
fn the_session_that_was_silent_longest_is_forgotten_first() {
    let mut sessions = Sessions::default();
    let mut epoch = Epoch(0);
    let mut note = |sessions: &mut Sessions, ids: std::ops::Range<u64>| {
        for from in ids.clone().step_by(1 << 13) {
            let asks: Vec<Ask> =
                (from..(from + (1 << 13)).min(ids.end)).map(|id| Ask::Write(Some((id, 9)))).collect();
            epoch = epoch.next();
            let chunks = vec![Placed::whole(0, chunk(0, &asks))];
            let total = asks.len() as u32;
            let (partition, now) = (PartitionId(0), Millis(0));
            sessions.note(&Batch { epoch, partition, layout: 1, now, total, chunks, ..Batch::default() });
        }
    };
    let is_known = |sessions: &Sessions, id| sessions.is_known(SessionId(id), RequestNo(9));
    note(&mut sessions, 1..Sessions::MAX as u64 + 1);
    assert!(is_known(&sessions, 1) && is_known(&sessions, Sessions::MAX as u64));
    assert!(!sessions.is_known(SessionId(1), RequestNo(10)));
    // The first speaks again; two new ones come.
    note(&mut sessions, 1..2);
    note(&mut sessions, 1 << 40..(1 << 40) + 2);
    assert!(is_known(&sessions, 1) && is_known(&sessions, (1 << 40) + 1));
    assert!(!is_known(&sessions, 2) && !is_known(&sessions, 3));
    assert!(is_known(&sessions, 4));
}

#[test]
fn a_chunk_of_reads_that_writes_is_not_run() {
    let mut bench = Bench::new(Settings::default());
    let mut read =
        |number, asks: &[Ask]| bench.tell(GATEWAY, Front::Read(chunk(number, asks), Snapshot::Closed));
    assert!(read(0, &[Ask::Read, WRITE]).is_empty());
    let sent = read(1, &[Ask::Read]);
    assert!(sent.iter().any(|(_, message)| matches!(message, Message::Reading(_))), "{sent:?}");
}

#[test]
fn what_is_not_for_the_sequencer_stops_it() {
    let mut bench = Bench::new(Settings::default());
    for message in [Message::Log(Log::Append(empty(1))), Message::Engine(())] {
        assert!(bench.event(Event::Message { from: LOG, message }).halt.is_some());
    }
}

// ---- the input log -----------------------------------------------------------------------------------------

fn empty(epoch: u64) -> Arc<Batch> {
    batch(epoch, &[])
}

fn batch(epoch: u64, asks: &[Ask]) -> Arc<Batch> {
    let chunks = vec![Placed::whole(0, chunk(epoch, asks))];
    let (epoch, partition, now) = (Epoch(epoch), PartitionId(0), Millis(1));
    Arc::new(Batch { epoch, partition, layout: 1, now, total: asks.len() as u32, chunks, ..Batch::default() })
}
