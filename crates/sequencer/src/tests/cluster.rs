//! The sequencer of a node among others: epochs kept together, and twins of whom one leads.

use super::*;
use crate::Post;

const COURIER: Address = at(2);
const ME: Address = at(0);
const WRITE: Ask = Ask::Write(None);

struct One {
    sequencer: Sequencer<()>,
}

impl One {
    fn new(has_twins: bool) -> One {
        let neighbours = Neighbours {
            me: ME,
            log: LOG,
            executors: vec![COURIER],
            courier: Some(COURIER),
            gateways: GATEWAY.role,
        };
        let settings = Settings { partition: PartitionId(1), ..Settings::default() };
        One { sequencer: Sequencer::new(settings, registry(), neighbours, has_twins) }
    }

    fn tell(&mut self, message: impl Into<Message<()>>) -> Sent {
        let mut out = Outbox::default();
        let now = Now { elapsed: Micros(0), wall: Micros::from_millis(5000) };
        let event = Event::Message { from: COURIER, message: message.into() };
        self.sequencer.handle(now, event, &mut out);
        assert_eq!(out.halt, None);
        out.sends
    }

    fn pause_ends(&mut self) -> Sent {
        let mut out = Outbox::default();
        self.sequencer.handle(Now::default(), Event::Timer(TimerId(2)), &mut out);
        out.sends
    }

    fn submit(&mut self, number: u64, asks: &[Ask]) -> Sent {
        self.tell(Front::Submit(chunk(number, asks)))
    }

    fn lead(&mut self, node: Option<u16>, last: u64) -> Sent {
        let is_me = node == Some(0);
        let (node, last) = (node.map(NodeId), Epoch(last));
        self.tell(Sequencing::Leader { node, term: 1, is_me, last })
    }
}

fn opened(sent: &Sent) -> Vec<u64> {
    let opened = sent.iter().filter_map(|(to, message)| match message {
        Message::Post(Post::Opened(epoch)) if *to == COURIER => Some(epoch.0),
        _ => None,
    });
    opened.collect()
}

/// What was passed on to another node: chunks by number, and epochs reached.
fn passed_on(sent: &Sent, node: u16) -> Vec<u64> {
    let there = Address { node: NodeId(node), role: ME.role };
    let passed_on = sent.iter().filter(|(to, _)| *to == there).map(|(_, message)| match message {
        Message::Front(Front::Submit(chunk)) => chunk.number.0,
        Message::Sequencing(Sequencing::Reached(epoch)) => epoch.0,
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
    let sent = one.tell(Sequencing::Logged(Epoch(7)));
    assert_eq!((batch_of(&sent).epoch, batch_of(&sent).total, opened(&sent)), (Epoch(12), 1, vec![]));
    assert!(one.tell(Sequencing::Reached(Epoch(11))).is_empty());
    assert!(one.tell(Sequencing::Logged(Epoch(12))).is_empty());
    // One that it opens itself, it says so.
    let sent = one.submit(1, &[WRITE]);
    assert_eq!((batch_of(&sent).epoch, opened(&sent)), (Epoch(13), vec![13]));
}

#[test]
fn a_sequencer_whose_shards_are_behind_still_seals_for_the_others() {
    let mut one = One::new(false);
    for epoch in 1..=4 {
        assert_eq!(batch_of(&one.submit(epoch, &[WRITE])).epoch, Epoch(epoch));
        one.tell(Sequencing::Logged(Epoch(epoch)));
    }
    assert!(one.submit(5, &[WRITE]).is_empty(), "four batches are not executed yet");
    let sealed = batch_of(&one.tell(Sequencing::Reached(Epoch(6))));
    assert_eq!((sealed.epoch, sealed.total), (Epoch(6), 0));
    one.tell(Sequencing::Logged(Epoch(6)));
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
    one.tell(Sequencing::Sealed(batch(20, std::slice::from_ref(&asked))));
    let first = batch_of(&one.lead(Some(0), 20));
    assert_eq!(
        (first.epoch, first.chunks.len()),
        (Epoch(21), 2),
        "what was passed on and has not been seen since"
    );
    one.tell(Sequencing::Logged(Epoch(21)));
    let again = batch_of(&one.submit(2, &[asked]));
    assert_eq!((again.epoch, again.lookups.len()), (Epoch(22), 1));
}

#[test]
fn what_was_lost_is_sequenced_again_here_or_by_whoever_leads() {
    let mut one = One::new(true);
    one.lead(Some(0), 0);
    let first = batch_of(&one.submit(0, &[WRITE]));
    one.submit(1, &[WRITE]);
    assert!(
        one.tell(Sequencing::Lost(first)).is_empty(),
        "a log that turns everything away is not asked at once"
    );
    let again = batch_of(&one.pause_ends());
    let numbers: Vec<u64> = again.chunks.iter().map(|placed| placed.chunk.number.0).collect();
    assert_eq!((numbers, again.epoch), (vec![0, 1], Epoch(2)), "in the order in which they came");
    // Its fate is open while nothing is said of it.
    assert_eq!(passed_on(&one.lead(Some(3), 5), 3), [] as [u64; 0]);
    assert_eq!(passed_on(&one.tell(Sequencing::Lost(again)), 3), [0, 1]);
    one.lead(None, 5);
    assert!(one.submit(2, &[WRITE]).is_empty());
    assert_eq!(batch_of(&one.lead(Some(0), 9)).epoch, Epoch(10));
}

#[test]
fn a_chunk_that_is_passed_on_again_takes_effect_once() {
    let mut one = One::new(true);
    one.lead(Some(4), 0);
    assert_eq!(passed_on(&one.submit(0, &[WRITE]), 4), [0]);
    assert_eq!(passed_on(&one.submit(1, &[WRITE]), 4), [1]);
    // The leader came to the first only.
    one.tell(Sequencing::Sealed(batch(0, &[WRITE])));
    assert!(one.lead(None, 1).is_empty());
    assert_eq!(passed_on(&one.lead(Some(5), 1), 5), [1]);
    // Now it leads itself. What it passed on last, and what comes again, it puts in a batch once.
    let sent = one.lead(Some(0), 1);
    assert_eq!(batch_of(&sent).chunks.len(), 1);
    assert!(one.submit(1, &[WRITE]).is_empty());
    one.tell(Sequencing::Sealed(batch_of(&sent)));
    one.tell(Sequencing::Logged(batch_of(&sent).epoch));
    let again = batch_of(&one.submit(1, &[WRITE, Ask::Read]));
    assert_eq!(again.chunks[0].skipped, [0], "the read may be run again, the write not");
}
