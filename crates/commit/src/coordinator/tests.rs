//! The outcomes that a coordinator keeps for participants, driven by hand.

use std::sync::Arc;

use ordain_model::{Epoch, Install};
use ordain_replication::Log;
use ordain_role::NodeId;

use super::*;
use crate::bench::Bench;
use crate::entry::{Commitment, Content, Entry};
use crate::ids::Term;
use crate::ids::TransactionId;
use crate::message::{Message, Own, Termed};
use crate::view::{Anti, Seen, View};

const OTHER: PartitionId = PartitionId(1);

fn lead(partition: u16, term: u64) -> Lead {
    Lead { partition: PartitionId(partition), term: Term(term) }
}

/// An attempt of a term of the first partition.
fn who(term: u64, number: u64) -> AttemptId {
    AttemptId { transaction: TransactionId { home: lead(0, term), number }, attempt: 1 }
}

/// The coordinator of the first partition, and its log.
struct Hand {
    at: Bench,
    coordinator: Coordinator,
    last: u64,
}

impl Hand {
    fn new() -> Hand {
        let mut at = Bench::new(0);
        at.leaders.note(lead(1, 1), NodeId(1));
        Hand { at, coordinator: Coordinator::default(), last: 0 }
    }

    /// The log has agreed on an entry.
    fn agree(&mut self, term: u64, content: Content) -> Arc<Entry> {
        self.last += 1;
        let place = Epoch(self.last);
        let entry = Arc::new(Entry { place, term: Term(term), now: Millis(0), content, agreed: None });
        self.at.agreed.apply(&entry).unwrap();
        entry
    }

    /// The node leads in a term.
    fn begin(&mut self, term: u64) -> (Vec<Content>, Vec<(AttemptId, bool)>) {
        self.agree(term, Content::Begin);
        self.at.lead = Some(lead(0, term));
        self.tell(|coordinator, desk| {
            coordinator.stand();
            coordinator.begin(desk);
        })
    }

    /// Has the coordinator do something; answers what it appends, and the outcomes that it tells.
    fn tell(
        &mut self,
        act: impl FnOnce(&mut Coordinator, &mut Desk<'_>),
    ) -> (Vec<Content>, Vec<(AttemptId, bool)>) {
        let Hand { at, coordinator, .. } = self;
        let (mut appended, mut told) = (Vec::new(), Vec::new());
        for (_, message) in at.tell(|desk| act(coordinator, desk)) {
            match message {
                Message::Log(Log::Append(entry)) => appended.push(entry.content.clone()),
                Message::Termed(Termed { content: Protocol::Decide(who, commit), .. }) => {
                    told.push((who, commit.is_some()));
                }
                other => panic!("{other:?}"),
            }
        }
        coordinator.check().unwrap();
        (appended, told)
    }

    /// Lets the time of forgetting come.
    fn pass(&mut self) -> Vec<Content> {
        self.at.elapsed = self.at.elapsed.plus(FORGET_EVERY);
        self.tell(Coordinator::pass).0
    }

    fn acknowledge(&mut self, who: AttemptId) {
        let now = self.at.elapsed;
        self.coordinator.acknowledged(OTHER, who, now);
    }
}

fn commit(attempt: AttemptId) -> Content {
    Content::Commit(Commit { attempt, age: Age(1), participants: vec![OTHER], ..Commit::default() })
}

/// Nobody can tell a new leader who has asked for what its predecessor has denied.
#[test]
fn a_new_leader_tells_of_commits_and_forgets_denials() {
    let mut hand = Hand::new();
    let (committed, denied) = (who(1, 1), who(1, 2));
    assert_eq!(hand.begin(1), (vec![], vec![]));
    hand.agree(1, commit(committed));
    assert_eq!(hand.tell(|of, desk| of.asked(OTHER, denied, desk)).0, [Content::Deny(denied)]);
    hand.agree(1, Content::Deny(denied));
    assert_eq!(hand.tell(|of, desk| of.deny(denied, desk)).1, [(denied, false)]);
    assert_eq!(hand.pass(), [], "nobody has acknowledged");

    assert_eq!(hand.begin(2).1, [(committed, true)]);
    assert_eq!(hand.tell(|of, desk| of.asked(OTHER, denied, desk)), (vec![], vec![(denied, false)]));
    assert_eq!(hand.pass(), [Content::Forget(vec![denied])]);
    hand.agree(2, Content::Forget(vec![denied]));
    hand.acknowledge(committed);
    assert_eq!(hand.pass(), [Content::Forget(vec![committed])]);
    hand.agree(2, Content::Forget(vec![committed]));
    assert_eq!(hand.at.agreed.all_decided().count(), 0);
    let late = who(1, 3);
    assert_eq!(hand.tell(|of, desk| of.asked(OTHER, late, desk)).0, [Content::Deny(late)]);
}

/// Found by a seed of three partitions: who asks while a denial is being forgotten, and does not hear the answer, asks again.
#[test]
fn who_asks_while_a_denial_is_forgotten_is_denied_again() {
    let mut hand = Hand::new();
    let denied = who(1, 1);
    hand.begin(1);
    hand.agree(1, Content::Deny(denied));
    hand.begin(2);
    assert_eq!(hand.pass(), [Content::Forget(vec![denied])]);
    assert_eq!(hand.tell(|of, desk| of.asked(OTHER, denied, desk)), (vec![], vec![(denied, false)]));
    hand.agree(2, Content::Forget(vec![denied]));
    hand.tell(|of, desk| of.forgotten(&[denied], Epoch(3), desk));
    assert_eq!(hand.tell(|of, desk| of.asked(OTHER, denied, desk)).0, [Content::Deny(denied)]);
}

/// Found by the lab's qstore-6 on a busy machine, whose log took longer than participants wait before they ask again: a denial was
/// on its way while an earlier one was forgotten, and the next question brought another, which contradicted it.
#[test]
fn what_is_being_denied_is_not_denied_beside_it() {
    let mut hand = Hand::new();
    let denied = who(1, 1);
    hand.begin(1);
    let ask = |hand: &mut Hand| hand.tell(|of, desk| of.asked(OTHER, denied, desk)).0;
    assert_eq!(ask(&mut hand), [Content::Deny(denied)]);
    // The participant has heard of the abort before, and asks once more.
    hand.acknowledge(denied);
    assert_eq!(hand.pass(), [Content::Forget(vec![denied])]);
    assert_eq!(ask(&mut hand), []);
    hand.agree(1, Content::Deny(denied));
    assert_eq!(hand.tell(|of, desk| of.deny(denied, desk)).1, [(denied, false)]);
    hand.agree(1, Content::Forget(vec![denied]));
    hand.tell(|of, desk| of.forgotten(&[denied], Epoch(3), desk));
    // A question that comes later still is denied anew, once.
    assert_eq!((ask(&mut hand), ask(&mut hand)), (vec![Content::Deny(denied)], vec![]));
    hand.agree(1, Content::Deny(denied));
    hand.tell(|of, desk| of.deny(denied, desk));
    hand.acknowledge(denied);
    assert_eq!(hand.pass(), [Content::Forget(vec![denied])]);
}

/// All know of a denial before it stands in the log: nobody has to be told, and the log need not keep it.
#[test]
fn a_denial_that_nobody_waits_for_is_forgotten() {
    let mut hand = Hand::new();
    let denied = who(1, 1);
    hand.begin(1);
    hand.tell(|of, desk| of.asked(OTHER, denied, desk));
    hand.tell(|of, desk| of.forgotten(&[denied], Epoch(3), desk));
    hand.agree(1, Content::Deny(denied));
    assert_eq!(hand.tell(|of, desk| of.deny(denied, desk)), (vec![], vec![]));
    assert_eq!(hand.pass(), [Content::Forget(vec![denied])]);
}

/// Outcomes that the disk has no space to forget are forgotten later.
#[test]
fn what_could_not_be_forgotten_is_forgotten_later() {
    let mut hand = Hand::new();
    assert_eq!(hand.begin(1), (vec![], vec![]));
    let first = who(1, 1);
    hand.agree(1, commit(first));
    hand.tell(|of, desk| of.announce(first, Commitment::at(Age(1)), [OTHER].into(), desk));
    hand.acknowledge(first);
    hand.at.appender.set_full(true);
    assert_eq!(hand.pass(), []);
    hand.at.appender.set_full(false);
    let forget = Content::Forget(vec![first]);
    assert_eq!(hand.pass(), std::slice::from_ref(&forget));
    let now = hand.at.elapsed;
    hand.coordinator.unwritten(&forget, now);
    assert_eq!(hand.pass(), [forget]);
    assert_eq!(hand.pass(), []);
}

/// A new leader tells of commits in the order of attempts, which is not that of decisions: what is told of each names the one before it that
/// the participant has not acknowledged.
#[test]
fn a_new_leader_names_all_decisions_that_are_not_acknowledged() {
    let mut hand = Hand::new();
    hand.begin(1);
    // The second attempt is decided first.
    for number in [2, 1] {
        let Content::Commit(commit) = commit(who(1, number)) else { unreachable!() };
        hand.agree(1, Content::Commit(Commit { view: View::of(Seen::NOTHING), ..commit }));
    }
    hand.agree(2, Content::Begin);
    hand.at.lead = Some(lead(0, 2));
    let Hand { at, coordinator, .. } = &mut hand;
    let sends = at.tell(|desk| {
        coordinator.stand();
        coordinator.begin(desk);
    });
    let told = sends.into_iter().filter_map(|(_, message)| match message {
        Message::Termed(Termed { content: Protocol::Decide(who, Some(with)), .. }) => {
            Some((who.transaction.number, with.view.seen().vector.of(PartitionId(0)), with.after))
        }
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [(1, 3, 2), (2, 2, 0)]);
    // A decision is told with the one before it, if that is asked for, though it does not concern the participant.
    for (install, after) in [(Install::Decoupled, [0, 0]), (Install::Paper, [0, 2])] {
        let mut hand = Hand::new();
        hand.begin(1);
        hand.at.site.propagation.install = install;
        let afters = [vec![], vec![OTHER]].map(|participants| {
            let number = 10 + participants.len() as u64;
            let Content::Commit(commit) = commit(who(1, number)) else { unreachable!() };
            let commit = Commit { view: View::of(crate::Seen::NOTHING), participants, ..commit };
            let entry = hand.agree(1, Content::Commit(commit.clone()));
            let Hand { at, coordinator, .. } = &mut hand;
            let sends = at.tell(|desk| coordinator.decided(&entry, &commit, desk));
            sends.into_iter().fold(0, |after, (_, message)| match message {
                Message::Termed(Termed { content: Protocol::Decide(_, Some(with)), .. }) => with.after,
                _ => after,
            })
        });
        assert_eq!(afters, after);
    }
    // The participant has installed 2. As in the paper it waits for every decision before 3 nevertheless.
    coordinator.acknowledged(PartitionId(1), who(1, 2), Micros(0));
    for (install, after) in [(Install::Decoupled, 0), (Install::Paper, 2)] {
        at.site.propagation.install = install;
        let sends = at.tell(|desk| coordinator.asked(PartitionId(1), who(1, 1), desk));
        let told = sends.into_iter().find_map(|(_, message)| match message {
            Message::Termed(Termed { content: Protocol::Decide(_, with), .. }) => with,
            _ => None,
        });
        assert_eq!(told.map(|with| with.after), Some(after));
    }
}

#[test]
fn readers_that_commits_name_are_counted() {
    let mut hand = Hand::new();
    hand.begin(1);
    for readers in [2, 0, 1] {
        let mut anti = Anti::default();
        (1..=readers).for_each(|number| anti.add(who(1, number)));
        let Content::Commit(commit) = commit(who(1, 9)) else { unreachable!() };
        let view = View::of(Seen { anti, ..Seen::NOTHING });
        let commit = Commit { view, participants: Vec::new(), ..commit };
        let content = Content::Commit(commit.clone());
        let entry = Entry { place: Epoch(1), term: Term(1), now: Millis(0), content, agreed: None };
        hand.tell(|of, desk| of.decided(&entry, &commit, desk));
    }
    assert_eq!((hand.coordinator.counts.named, hand.coordinator.counts.single), (3, 3));
}

/// Decision 56: the request to validate takes the second stamp along, and requests leave in the order of those.
#[test]
fn second_stamps_are_drawn_as_participants_are_asked() {
    let mut at = Bench::new(0);
    (at.site.stamps, at.site.validates) = (Stamps::TwoOfAttempt, true);
    at.lead = Some(lead(0, 1));
    at.leaders.note(lead(0, 1), NodeId(0));
    let mut coordinator = Coordinator { stamping: Stamping::new(&at.site), ..Coordinator::default() };
    let begin =
        Entry { place: Epoch(1), term: Term(1), now: Millis(0), content: Content::Begin, agreed: None };
    at.agreed.apply(&Arc::new(begin)).unwrap();
    for number in 1..=3 {
        let shards = vec![(0, lead(0, 1))];
        let (bounds, commit) = (Bounds::default(), Commit::default());
        let (holds, checked) = (Vec::new(), BTreeMap::new());
        let ready = Ready { now: Millis(0), bounds, commit, end: None, holds, checked };
        let live = Live {
            home: lead(0, 1),
            askers: Vec::new(),
            chunk: Arc::new(Chunk::new(GatewayId::of(0, 0), ChunkNo(1))),
            at: 0,
            attempt: 1,
            age: Age(number),
            reads: Reads::Newest,
            view: View::NONE,
            since: Micros(0),
            state: State::Voting { awaited: BTreeSet::new(), shards, ready: Box::new(ready) },
            open: None,
            part: None,
            is_regional: false,
            no: None,
            losses: 0,
            reserved: None,
        };
        coordinator.live.insert(number, Box::new(live));
    }
    let asked = |sent: Vec<(ordain_role::Address, Message)>| -> Vec<(u64, Bounds, bool)> {
        let asked = sent.into_iter().map(|(_, message)| match message {
            Message::Own(Own::Validate(who, of)) => (who.transaction.number, of.bounds, of.has_effect),
            other => panic!("{other:?}"),
        });
        asked.collect()
    };
    for number in [2, 1] {
        assert_eq!(asked(at.tell(|desk| coordinator.validate(number, desk))), [], "nothing is reserved");
    }
    assert!(coordinator.take_wanted().is_some());
    let content = Content::Reserve(Millis(1_000_000));
    let reserve = Entry { place: Epoch(2), term: Term(1), now: Millis(0), content, agreed: None };
    at.agreed.apply(&Arc::new(reserve)).unwrap();
    let mut all = asked(at.tell(|desk| coordinator.go_on_stamped(desk)));
    assert_eq!(asked(at.tell(|desk| coordinator.go_on_stamped(desk))), [], "once");
    all.extend(asked(at.tell(|desk| coordinator.validate(3, desk))));
    assert_eq!(all.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(all.is_sorted_by(|a, b| a.1.from < b.1.from) && all.iter().all(|(.., has_effect)| *has_effect));
    // No version is forgotten that the first of those under way may see.
    for (number, stamp) in [(2, 70), (1, 50), (1, 90)] {
        coordinator.stamping.begin(number, Age(stamp));
    }
    assert_eq!(coordinator.stamping.oldest(), Age(70));
    coordinator.stamping.end(2);
    assert_eq!(coordinator.stamping.oldest(), Age(90));
    coordinator.stamping.end(1);
    assert_eq!(coordinator.stamping.oldest(), all[2].1.from);
}
