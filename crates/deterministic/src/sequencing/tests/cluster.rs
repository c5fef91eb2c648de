//! The sequencer of a node among others: epochs kept together, and members of whom one leads.

use super::*;
use crate::sequencing::chunks::Chunks;
use crate::sequencing::{ExchangeMessage, Reading};
use ordain_model::Token;
use ordain_role::{PeerChange, PeerState};

const EXCHANGE: Address = at(2);
const ME: Address = at(0);
const WRITE: Ask = Ask::Write(None);
const PACE: Micros = Micros::from_millis(1);
const SHARD: Address = at(16);
/// More than most scenarios pass on.
const PIECE: usize = 1000;
const FAR_SHARD: Address = Address { node: NodeId(1), role: 16 };

struct One {
    sequencer: Sequencer<()>,
    elapsed: Micros,
}

impl One {
    fn new(has_members: bool) -> One {
        One::with_room(has_members, 1)
    }

    /// One whose log takes so many batches at once.
    fn with_room(has_members: bool, in_log_max: usize) -> One {
        let neighbours = Neighbours {
            me: ME,
            log: LOG,
            executors: vec![EXCHANGE],
            exchange: Some(EXCHANGE),
            gateways: GATEWAY.role,
            readers: Readers {
                layout: Arc::new(Layout::even(2, 1).unwrap()),
                shards: vec![SHARD, FAR_SHARD],
            },
        };
        let settings =
            Settings { partition: PartitionId(1), in_log_max, piece: PIECE, ..Settings::default() };
        One { sequencer: Sequencer::new(settings, registry(), neighbours, has_members), elapsed: Micros(0) }
    }

    fn tell(&mut self, message: impl Into<Message<()>>) -> Sent {
        let mut out = Outbox::default();
        let event = Event::Message { from: EXCHANGE, message: message.into() };
        self.sequencer.handle(self.now(), event, &mut out);
        self.sequencer.check().unwrap();
        assert_eq!(out.halt, None);
        out.sends
    }

    fn now(&self) -> Now {
        Now { elapsed: self.elapsed, wall: Micros::from_millis(5000) }
    }

    fn fire(&mut self, timer: u32) -> Sent {
        let mut out = Outbox::default();
        self.sequencer.handle(self.now(), Event::Timer(TimerId(timer)), &mut out);
        self.sequencer.check().unwrap();
        out.sends
    }

    fn pause_ends(&mut self) -> Sent {
        self.fire(2)
    }

    /// The shards keep what reads need, or have had the time for it.
    fn hold_ends(&mut self) -> Sent {
        self.fire(7)
    }

    /// So much later, and a batch may follow those in the log.
    fn pace(&mut self, later: Micros) -> Sent {
        self.elapsed = self.elapsed.plus(later);
        self.fire(4)
    }

    fn submit(&mut self, number: u64, asks: &[Ask]) -> Sent {
        self.tell(Front::Submit(chunk(number, asks)))
    }

    fn lead(&mut self, node: Option<u16>, last: u64) -> Sent {
        let is_me = node == Some(0);
        let (node, last) = (node.map(NodeId), Epoch(last));
        self.tell(Log::Leader { node, term: 1, is_me, last })
    }
}

fn opened(sent: &Sent) -> Vec<u64> {
    let opened = sent.iter().filter_map(|(to, message)| match message {
        Message::Exchange(ExchangeMessage::Opened(epoch)) if *to == EXCHANGE => Some(epoch.0),
        _ => None,
    });
    opened.collect()
}

/// What was passed on to another node: chunks by number, and epochs reached.
fn passed_on(sent: &Sent, node: u16) -> Vec<u64> {
    let there = Address { node: NodeId(node), role: ME.role };
    let passed_on = sent.iter().filter(|(to, _)| *to == there).filter_map(|(_, message)| match message {
        Message::Front(Front::Submit(chunk)) => Some(chunk.number.0),
        Message::Front(Front::Pause(_)) => None,
        Message::Sequencing(Sequencing::Reached(epoch)) => Some(epoch.0),
        other => panic!("{other:?} was passed on"),
    });
    passed_on.collect()
}

#[test]
fn an_epoch_that_others_have_opened_is_sealed_with_whatever_there_is() {
    let mut one = One::new(false);
    // With nothing: at once, and nobody has to be told that it is open.
    let sent = one.tell(Sequencing::Reached(Epoch(7)));
    assert_eq!((batch_of(&sent).epoch, batch_of(&sent).total, opened(&sent)), (Epoch(7), 0, vec![]));
    // While the log is busy what is heard and what is asked for gather.
    assert!(one.tell(Sequencing::Reached(Epoch(8))).is_empty());
    assert!(one.tell(Sequencing::Reached(Epoch(12))).is_empty());
    assert!(one.submit(0, &[WRITE]).is_empty());
    let sent = one.tell(Log::Logged(Epoch(7)));
    assert_eq!((batch_of(&sent).epoch, batch_of(&sent).total, opened(&sent)), (Epoch(12), 1, vec![]));
    assert!(one.tell(Sequencing::Reached(Epoch(11))).is_empty());
    assert!(one.tell(Log::Logged(Epoch(12))).is_empty());
    // One that it opens itself, it says so.
    let sent = one.submit(1, &[WRITE]);
    assert_eq!((batch_of(&sent).epoch, opened(&sent)), (Epoch(13), vec![13]));
}

#[test]
fn a_sequencer_whose_shards_are_behind_still_seals_for_the_others() {
    let mut one = One::new(false);
    for epoch in 1..=4 {
        assert_eq!(batch_of(&one.submit(epoch, &[WRITE])).epoch, Epoch(epoch));
        one.tell(Log::Logged(Epoch(epoch)));
    }
    assert!(one.submit(5, &[WRITE]).is_empty(), "four batches are not executed yet");
    let sealed = batch_of(&one.tell(Sequencing::Reached(Epoch(6))));
    assert_eq!((sealed.epoch, sealed.total), (Epoch(6), 0));
    one.tell(Log::Logged(Epoch(6)));
    let applied = Sequencing::Applied { epoch: Epoch(1), partition: PartitionId(1) };
    assert_eq!(batch_of(&one.tell(applied)).total, 1);
}

#[test]
fn a_follower_passes_on_and_a_leader_goes_on_where_the_log_ends() {
    let mut one = One::new(true);
    assert!(one.submit(0, &[WRITE]).is_empty(), "nobody leads yet");
    assert!(one.tell(Sequencing::Reached(Epoch(3))).is_empty());
    assert_eq!(passed_on(&one.lead(Some(4), 0), 4), [0, 3]);
    assert_eq!(passed_on(&one.submit(1, &[WRITE]), 4), [1]);
    assert_eq!(passed_on(&one.tell(Sequencing::Reached(Epoch(5))), 4), [5]);
    // What the leader's batch held is known here too.
    let asked = Ask::Write(Some((9, 1)));
    one.tell(Log::Sealed(batch(20, std::slice::from_ref(&asked))));
    let first = batch_of(&one.lead(Some(0), 20));
    assert_eq!(
        (first.epoch, first.chunks.len()),
        (Epoch(21), 2),
        "what was passed on and has not been seen since"
    );
    one.tell(Log::Logged(Epoch(21)));
    let again = batch_of(&one.submit(2, &[asked]));
    assert_eq!((again.epoch, again.lookups.len()), (Epoch(22), 1));
}

#[test]
fn what_is_passed_on_goes_in_pieces_and_to_whoever_leads_by_then() {
    const COUNT: u64 = 100;
    let mut one = One::new(true);
    let bytes = chunk(0, &[WRITE]).bytes();
    // Chunks by number, up to a pause.
    let mut paused = Vec::new();
    let mut passed = |sent: Sent, node| {
        let mut passed = Vec::new();
        for (to, message) in sent {
            assert_eq!(to, Address { node: NodeId(node), role: ME.role });
            match message {
                Message::Front(Front::Submit(chunk)) => passed.push(chunk.number.0),
                Message::Front(Front::Pause(pause)) => paused.push(pause),
                Message::Sequencing(Sequencing::Reached(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        (passed, paused.len())
    };
    (0..COUNT).for_each(|number| assert!(one.submit(number, &[WRITE]).is_empty()));
    let piece = PIECE.div_ceil(bytes) as u64;
    assert!(4 * piece < COUNT);
    assert_eq!(passed(one.lead(Some(4), 0), 4), ((0..2 * piece).collect(), 2));
    assert_eq!(passed(one.submit(COUNT, &[WRITE]), 4), (vec![], 2));
    assert_eq!(passed(one.tell(Front::Continue(PauseNo(1))), 4), ((2 * piece..3 * piece).collect(), 3));
    // What has come to the one before goes again, as it may be gone with it; then what has waited.
    assert_eq!(passed(one.lead(Some(5), 0), 5), ((0..2 * piece).collect(), 5));
    let fresh = PeerChange { node: NodeId(5), state: PeerState::Fresh };
    assert_eq!(passed(one.tell(fresh), 5).0[..3], [0, 1, 2]);
    one.lead(None, 0);
    // What the last leader has taken is no reason to send another more.
    assert!(one.tell(Front::Continue(PauseNo(5))).is_empty());
    assert_eq!(batch_of(&one.lead(Some(0), 0)).total, COUNT as u32 + 1);
}

#[test]
fn what_waits_to_be_passed_on_waits_for_as_long_as_it_takes() {
    let mut one = One::new(true);
    let piece = PIECE.div_ceil(chunk(0, &[WRITE]).bytes()) as u64;
    (0..4 * piece).for_each(|number| assert!(one.submit(number, &[WRITE]).is_empty()));
    assert_eq!(passed_on(&one.lead(Some(4), 0), 4), (0..2 * piece).collect::<Vec<_>>());
    // Past the leader's patience: what had come to it is settled, what has not left is asked for still.
    one.elapsed = Micros::from_millis(60_000);
    let next = one.tell(Front::Continue(PauseNo(1)));
    assert_eq!(passed_on(&next, 4), (2 * piece..3 * piece).collect::<Vec<_>>());
    assert_eq!(passed_on(&one.lead(Some(5), 0), 5), (2 * piece..4 * piece).collect::<Vec<_>>());
}

#[test]
fn what_was_lost_is_sequenced_again_here_or_by_whoever_leads() {
    let mut one = One::new(true);
    one.lead(Some(0), 0);
    let first = batch_of(&one.submit(0, &[WRITE]));
    one.submit(1, &[WRITE]);
    assert!(one.tell(Log::Lost(first)).is_empty(), "a log that turns everything away is not asked at once");
    let again = batch_of(&one.pause_ends());
    let numbers: Vec<u64> = again.chunks.iter().map(|placed| placed.chunk.number.0).collect();
    assert_eq!((numbers, again.epoch), (vec![0, 1], Epoch(2)), "in the order in which they came");
    // Its fate is open while nothing is said of it.
    assert_eq!(passed_on(&one.lead(Some(3), 5), 3), [] as [u64; 0]);
    assert_eq!(passed_on(&one.tell(Log::Lost(again)), 3), [0, 1]);
    one.lead(None, 5);
    assert!(one.submit(2, &[WRITE]).is_empty());
    assert_eq!(batch_of(&one.lead(Some(0), 9)).epoch, Epoch(10));
}

/// Found by `e2e engines::paxflow_strict` on a loaded machine: a strict read waited for a batch that was lost after another node
/// had begun to lead, and nobody asked that one, until the next read came by.
#[test]
fn a_read_as_of_a_lost_batch_is_for_whoever_leads() {
    let asked = |sent: &Sent| {
        let is_ask = |message: &Message<()>| matches!(message, Message::Reading(Reading::Ask(..)));
        sent.iter().filter(|(_, message)| is_ask(message)).map(|(to, _)| to.node.0).collect::<Vec<_>>()
    };
    let mut one = One::new(true);
    one.lead(Some(0), 0);
    let read = Front::Read(chunk(0, &[Ask::Read]), Snapshot::Latest(Token::default()));
    one.tell(read);
    let empty = batch_of(&one.hold_ends());
    assert_eq!(empty.total, 0);
    // The fate of the batch is open while nothing is said of it.
    assert_eq!(asked(&one.lead(Some(3), 0)), [] as [u16; 0]);
    assert_eq!(asked(&one.tell(Log::Lost(empty))), [3]);
}

#[test]
fn a_chunk_that_is_passed_on_again_takes_effect_once() {
    let mut one = One::new(true);
    one.lead(Some(4), 0);
    assert_eq!(passed_on(&one.submit(0, &[WRITE]), 4), [0]);
    assert_eq!(passed_on(&one.submit(1, &[WRITE]), 4), [1]);
    // The leader came to the first only.
    one.tell(Log::Sealed(batch(0, &[WRITE])));
    assert!(one.lead(None, 1).is_empty());
    assert_eq!(passed_on(&one.lead(Some(5), 1), 5), [1]);
    // Now it leads itself. What it passed on last, and what comes again, it puts in a batch once.
    let sent = one.lead(Some(0), 1);
    assert_eq!(batch_of(&sent).chunks.len(), 1);
    assert!(one.submit(1, &[WRITE]).is_empty());
    one.tell(Log::Sealed(batch_of(&sent)));
    one.tell(Log::Logged(batch_of(&sent).epoch));
    let again = batch_of(&one.submit(1, &[WRITE, Ask::Read]));
    assert_eq!(again.chunks[0].skipped, [0], "the read may be run again, the write not");
}

/// Seed 5104 of two partitions, three replicas: one chunk was in a batch twice.
#[test]
fn a_chunk_that_was_passed_on_while_its_batch_was_in_the_log_takes_effect_once() {
    let mut one = One::new(true);
    one.lead(Some(0), 0);
    let first = batch_of(&one.submit(0, &[WRITE]));
    // Deposed, and asked again.
    one.lead(Some(3), 0);
    assert_eq!(passed_on(&one.submit(0, &[WRITE]), 3), [0]);
    one.lead(None, 0);
    assert!(one.tell(Log::Lost(first)).is_empty());
    let sent = [one.lead(Some(0), 5), one.submit(0, &[WRITE]), one.pause_ends()].concat();
    assert_eq!(batch_of(&sent).chunks.len(), 1);
}

/// What gateways were told of chunks: by number, with the words.
fn told(sent: &Sent) -> Vec<(u64, OutcomeStatus)> {
    let outcomes = sent.iter().filter_map(|(_, message)| match message {
        Message::Front(Front::Outcomes(told)) => Some(&told.outcomes),
        _ => None,
    });
    outcomes.flatten().map(|outcome| (outcome.chunk.0, outcome.status)).collect()
}

#[test]
fn what_was_turned_away_is_turned_away_again_and_never_in_silence() {
    let mut one = One::new(true);
    one.lead(Some(0), 0);
    let first = batch_of(&one.submit(0, &[WRITE, Ask::Read]));
    let sent = one.tell(Log::Rejected(first));
    assert_eq!(told(&sent), [(0, OutcomeStatus::Refused), (0, OutcomeStatus::Refused)]);
    one.tell(Log::Writable);
    // The words may be lost on their way: whoever asks again is told, and nothing takes effect.
    let again = one.submit(0, &[WRITE, Ask::Read]);
    assert_eq!(told(&again), [(0, OutcomeStatus::Unknown), (0, OutcomeStatus::Unknown)]);
    assert_eq!(again.len(), 1);
    // But if another has put it into a batch, that is what counts.
    one.tell(Log::Sealed(batch(0, &[WRITE])));
    assert_eq!(told(&one.submit(0, &[WRITE])), []);
}

#[test]
fn what_is_too_old_to_tell_is_unknown_and_not_passed_over_in_silence() {
    let mut one = One::new(true);
    one.lead(Some(0), 0);
    for number in 1..=Chunks::MAX as u64 {
        one.tell(Log::Sealed(batch(number, &[WRITE])));
    }
    assert_eq!(told(&one.submit(0, &[WRITE])), [(0, OutcomeStatus::Unknown)]);
    assert_eq!(told(&one.submit(1, &[WRITE])), [], "whoever executed it answers");
}

#[test]
fn batches_follow_each_other_into_a_log_that_takes_its_time() {
    let mut one = One::with_room(true, 3);
    one.lead(Some(0), 0);
    assert_eq!(batch_of(&one.submit(0, &[WRITE])).epoch, Epoch(1));
    assert!(one.submit(1, &[WRITE]).is_empty() && one.submit(2, &[WRITE]).is_empty(), "not at once");
    assert!(one.pace(Micros(999)).is_empty());
    let second = batch_of(&one.pace(Micros(1)));
    assert_eq!((second.epoch, second.total), (Epoch(2), 2), "what has come meanwhile goes together");
    // An epoch that others have opened is sealed at the same pace.
    assert!(one.tell(Sequencing::Reached(Epoch(7))).is_empty());
    assert_eq!(batch_of(&one.pace(PACE)).epoch, Epoch(7));
    // Three are all that it takes.
    one.submit(3, &[WRITE]);
    assert!(one.pace(Micros::from_millis(100)).is_empty());
    // One that has taken long: they keep a third of that, of the mean with what was before, between them.
    assert_eq!(batch_of(&one.tell(Log::Logged(Epoch(1)))).epoch, Epoch(8));
    one.tell(Log::Logged(Epoch(2)));
    one.submit(4, &[WRITE]);
    assert!(one.pace(Micros::from_millis(20)).is_empty());
    assert_eq!(batch_of(&one.pace(Micros::from_millis(10))).epoch, Epoch(9));
    // With nothing in the log there is nothing to wait for.
    for epoch in 7..=9 {
        one.tell(Log::Logged(Epoch(epoch)));
    }
    let applied = Sequencing::Applied { epoch: Epoch(9), partition: PartitionId(1) };
    one.tell(applied);
    assert_eq!(batch_of(&one.submit(5, &[WRITE])).epoch, Epoch(10));
}

#[test]
fn only_what_the_log_has_let_go_counts_as_not_executed() {
    let mut one = One::with_room(true, 8);
    one.lead(Some(0), 0);
    one.submit(1, &[WRITE]);
    for epoch in 2..=6 {
        one.submit(epoch, &[WRITE]);
        assert_eq!(batch_of(&one.pace(PACE)).epoch, Epoch(epoch));
    }
    for epoch in 1..=4 {
        one.tell(Log::Logged(Epoch(epoch)));
    }
    one.submit(7, &[WRITE]);
    assert!(one.pace(PACE).is_empty(), "four batches are agreed on and not executed");
    let applied = Sequencing::Applied { epoch: Epoch(1), partition: PartitionId(1) };
    assert_eq!(batch_of(&one.tell(applied)).epoch, Epoch(7));
}

#[test]
fn a_request_that_is_in_the_log_is_asked_about_and_not_repeated() {
    let mut one = One::with_room(true, 3);
    let ask = |request| Ask::Write(Some((9, request)));
    one.lead(Some(0), 0);
    one.submit(0, &[ask(1), ask(2)]);
    one.submit(1, &[ask(2), ask(3), ask(1)]);
    let second = batch_of(&one.pace(PACE));
    assert_eq!((second.lookups.len(), second.chunks[0].skipped.as_slice()), (2, &[0, 2][..]));
    one.submit(2, &[ask(3), ask(4)]);
    let third = batch_of(&one.pace(PACE));
    assert_eq!((third.lookups.len(), third.lookups[0].request.0), (1, 3));
}

#[test]
fn batches_that_are_lost_together_keep_their_order() {
    let mut one = One::with_room(true, 3);
    one.lead(Some(0), 0);
    let first = batch_of(&one.submit(0, &[WRITE]));
    one.submit(1, &[WRITE]);
    one.submit(2, &[WRITE]);
    let second = batch_of(&one.pace(PACE));
    one.submit(3, &[WRITE]);
    assert!(one.tell(Log::Lost(first)).is_empty());
    assert!(one.tell(Log::Lost(second)).is_empty());
    let again = batch_of(&one.pause_ends());
    let numbers = |batch: &Batch| batch.chunks.iter().map(|placed| placed.chunk.number.0).collect::<Vec<_>>();
    assert_eq!((numbers(&again), again.epoch), (vec![0, 1, 2, 3], Epoch(3)));
    // And where another leads.
    one.submit(4, &[WRITE]);
    let next = batch_of(&one.pace(PACE));
    one.lead(Some(3), 0);
    let mut passed = passed_on(&one.tell(Log::Lost(again)), 3);
    passed.extend(passed_on(&one.tell(Log::Lost(next)), 3));
    assert_eq!(passed, [0, 1, 2, 3, 4]);
}

#[test]
fn nothing_is_closed_before_the_nodes_of_the_replica_have_met() {
    let mut one = One::new(false);
    one.sequencer.wait_for_peers();
    assert!(one.submit(0, &[WRITE]).is_empty());
    assert!(one.tell(Sequencing::Reached(Epoch(5))).is_empty());
    assert_eq!(batch_of(&one.tell(Sequencing::Founded)).total, 1);
}
