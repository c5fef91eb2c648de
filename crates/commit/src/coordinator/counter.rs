//! One counter for all homes (`--option ts-source=counter`): the leader of partition 0 gives every stamp, in the order of requests.
//!
//! ```text
//!  a home: attempts wait ──Stamps──▶ the leader of partition 0: proves that it leads,
//!          attempts begin ◀─Stamped──  and gives stamps below its ceiling (R-CEILING)
//! ```
//!
//! The order of stamps is that of real time, by three rules. A stamp goes to an attempt that waited when it was asked for. Before it gives
//! a stamp the leader proves, by a quorum round that began after the request, that it leads: a former leader would give stamps below those
//! of its successor. A new leader gives later stamps than its predecessor's ceiling.
//!
//! A home asks once a turn for all attempts that wait. Requests have numbers, and an answer is taken once; what may be lost is asked for again
//! under another number. So every stamp is given to one attempt at most.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ordain_model::{Micros, PartitionId};

use super::stamping::Stamping;
use super::{Coordinator, LIVE_MAX, State};
use crate::desk::Desk;
use crate::ids::{Age, AttemptId, Lead, TransactionId};
use crate::message::{Protocol, StampRequest, Stamped};
use crate::stamps::{LATEST, micros_of};

/// The partition whose leader gives the stamps.
pub const COUNTER: PartitionId = PartitionId(0);

impl StampRequest {
    /// True if it can be heeded: it may come from another node.
    fn is_sound(&self) -> bool {
        (1..=LIVE_MAX as u32).contains(&self.count) && self.after <= LATEST
    }
}

/// The attempts of a home that wait for the counter.
#[derive(Debug, Default)]
pub struct Requests {
    /// The transactions of which no request under way is.
    unasked: BTreeSet<u64>,
    /// The other ones, each with the request that it is of.
    asked: BTreeMap<u64, u64>,
    /// The transactions of each request, in the order of their stamps.
    under_way: BTreeMap<u64, Vec<u64>>,
    /// The number of the last request. It rises over terms.
    last: u64,
}

impl Requests {
    /// A transaction wants a stamp. What was asked for it before goes to nobody.
    pub fn want(&mut self, number: u64) {
        self.asked.remove(&number);
        self.unasked.insert(number);
    }

    /// Asks for what was not asked for, unless nobody is known who gives it.
    fn ask(&mut self, after: Age, is_live: impl Fn(&u64) -> bool, desk: &mut Desk<'_>) {
        self.unasked.retain(is_live);
        let (number, count) = (self.last + 1, self.unasked.len() as u32);
        let request = Protocol::Stamps(StampRequest { number, count, after });
        if count == 0 || !desk.tell_manager(COUNTER, request) {
            return;
        }
        self.last = number;
        let numbers: Vec<u64> = std::mem::take(&mut self.unasked).into_iter().collect();
        self.asked.extend(numbers.iter().map(|of| (*of, number)));
        self.under_way.insert(number, numbers);
    }

    /// Takes an answer; answers the transactions that have waited for it, with their stamps.
    fn take(&mut self, Stamped { number, first }: Stamped) -> Vec<(u64, Age)> {
        let numbers = self.under_way.remove(&number).unwrap_or_default();
        let stamped = (0..).zip(numbers).map(|(at, of)| (of, first.later(Micros(at))));
        let is_its = |(of, _): &(u64, Age)| self.asked.get(of) == Some(&number);
        let stamped: Vec<(u64, Age)> = stamped.filter(is_its).collect();
        stamped.iter().for_each(|(of, _)| _ = self.asked.remove(of));
        stamped
    }

    /// Requests or their answers may be lost: what they were for is asked for again.
    pub fn again(&mut self) {
        self.under_way.clear();
        self.unasked.extend(std::mem::take(&mut self.asked).into_keys());
    }

    /// The node leads no more.
    pub fn stand(&mut self) {
        *self = Requests { last: self.last, ..Requests::default() };
    }

    /// Checks what must hold between two events.
    ///
    /// # Errors
    /// A transaction that waits for a request that is not under way.
    pub fn check(&self) -> Result<(), String> {
        let is_of = |(of, number): &(&u64, &u64)| {
            self.under_way.get(number).is_some_and(|numbers| numbers.contains(of))
        };
        match self.asked.iter().find(|entry| !is_of(entry)) {
            Some((of, number)) => Err(format!("transaction {of} waits for request {number}, which is over")),
            None => Ok(()),
        }
    }
}

/// The leader's side: requests, until they are answered.
#[derive(Debug, Default)]
pub struct Counter {
    /// The number of the last question whether the node leads. It rises over terms.
    questions: u64,
    /// Requests, each with its question. The proof of a later one proves it too.
    unproven: VecDeque<(u64, Lead, StampRequest)>,
    /// Requests after which the node led: they wait for the ceiling.
    proven: VecDeque<(Lead, StampRequest)>,
}

impl Counter {
    /// Takes a request; answers the number of its question.
    fn take(&mut self, from: Lead, request: StampRequest) -> u64 {
        self.questions += 1;
        self.unproven.push_back((self.questions, from, request));
        self.questions
    }

    /// The node led after it was asked.
    fn proved(&mut self, question: u64) {
        let is_proved = |(of, ..): &mut (u64, Lead, StampRequest)| *of <= question;
        while let Some((_, from, request)) = self.unproven.pop_front_if(is_proved) {
            self.proven.push_back((from, request));
        }
    }

    /// The node leads no more.
    pub fn stand(&mut self) {
        *self = Counter { questions: self.questions, ..Counter::default() };
    }
}

impl Coordinator {
    /// Asks for stamps, once a turn for all attempts that wait for the counter.
    pub fn ask_for_stamps(&mut self, desk: &mut Desk<'_>) {
        let after = self.heard().max(Age::first_at(self.latest));
        let live = &self.live;
        self.stamping.requests.ask(after, |number| live.contains_key(number), desk);
    }

    /// Takes a home's request for stamps; answers the question to be confirmed first. The cohort takes it for an attempt that has read here, of
    /// which it is to prove that the node led afterwards: attempts have numbers from 1, and this one has 0.
    pub fn count(&mut self, from: Lead, request: StampRequest, desk: &Desk<'_>) -> Option<AttemptId> {
        let home = desk.lead.filter(|lead| lead.partition == COUNTER && request.is_sound())?;
        let number = self.stamping.counter.take(from, request);
        Some(AttemptId { transaction: TransactionId { home, number }, attempt: 0 })
    }

    /// The cohort has proved that the node led after it was asked. Without a proof nothing is said: homes ask the next leader, or
    /// again.
    pub fn proved(&mut self, from: Lead, question: AttemptId, desk: &mut Desk<'_>) {
        if Some(from) == desk.lead && question.home() == from {
            self.stamping.counter.proved(question.transaction.number);
            self.give_stamps(desk);
        }
    }

    /// Gives the stamps that were asked for, as far as they are below the ceiling.
    pub(super) fn give_stamps(&mut self, desk: &mut Desk<'_>) {
        let Stamping { clock, counter, wanted, .. } = &mut self.stamping;
        while let Some((to, StampRequest { number, count, after })) = counter.proven.front().copied() {
            // The requests of a home's next leader have numbers of their own.
            if desk.leaders.of(to.partition).is_some_and(|(_, lead)| lead == to) {
                clock.hear(after);
                let first = clock.next(micros_of(desk.clock).max(Stamping::shown(desk)), COUNTER);
                let last = first.later(Micros(u64::from(count) - 1));
                *wanted = (*wanted).max(Some(last.time()));
                if last.time() >= desk.agreed.ceiling() {
                    return;
                }
                clock.hear(last);
                desk.tell_manager(to.partition, Protocol::Stamped(Stamped { number, first }));
            }
            counter.proven.pop_front();
        }
    }

    /// Takes stamps that were asked for: the attempts that have waited for them begin.
    pub fn stamped(&mut self, stamped: Stamped, desk: &mut Desk<'_>) {
        for (number, stamp) in self.stamping.requests.take(stamped) {
            if self.live.get(&number).is_some_and(|live| matches!(live.state, State::Waiting)) {
                self.stamping.hear(stamp);
                self.begin_stamped(number, stamp, desk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_model::{Epoch, Millis, StampSource};
    use ordain_role::NodeId;

    use super::*;
    use crate::bench::Bench;
    use crate::entry::{Content, Entry};
    use crate::ids::Term;
    use crate::message::{Message, Termed};
    use crate::stamps::Stamps;

    fn lead(partition: u16, term: u64) -> Lead {
        Lead { partition: PartitionId(partition), term: Term(term) }
    }

    /// The desk of a node that leads its partition, and knows that node 1 - n leads the other.
    fn bench(node: u16) -> Bench {
        let mut at = Bench::new(node);
        (at.site.stamps, at.site.source) = (Stamps::OfAttempt, StampSource::Counter);
        (0..2).for_each(|partition| _ = at.leaders.note(lead(partition, 1), NodeId(partition)));
        at.lead = Some(lead(node, 1));
        at
    }

    fn said(sent: Vec<(ordain_role::Address, Message)>) -> Vec<Protocol> {
        let content = |(_, message)| match message {
            Message::Termed(Termed { content, .. }) => Some(content),
            _ => None,
        };
        sent.into_iter().filter_map(content).collect()
    }

    /// A home, and what it asks for.
    struct Home {
        at: Bench,
        requests: Requests,
    }

    impl Home {
        fn new() -> Home {
            Home { at: bench(1), requests: Requests::default() }
        }

        /// Asks for what is wanted; answers the number of the request and the count of its stamps.
        fn ask(&mut self) -> Option<(u64, u32)> {
            let Home { at, requests } = self;
            let sent = said(at.tell(|desk| requests.ask(Age(7), |number| *number != 13, desk)));
            requests.check().unwrap();
            match sent[..] {
                [] => None,
                [Protocol::Stamps(StampRequest { number, count, after: Age(7) })] => Some((number, count)),
                ref other => panic!("{other:?}"),
            }
        }

        fn take(&mut self, number: u64, first: u64) -> Vec<(u64, u64)> {
            let first = Age::stamp(Micros(first), COUNTER);
            let taken = self.requests.take(Stamped { number, first });
            self.requests.check().unwrap();
            taken.into_iter().map(|(of, stamp)| (of, stamp.micros().0)).collect()
        }
    }

    #[test]
    fn a_stamp_goes_to_one_attempt_that_waited_when_it_was_asked_for() {
        let mut home = Home::new();
        assert_eq!(home.ask(), None, "nobody waits");
        [5, 3, 13].into_iter().for_each(|number| home.requests.want(number));
        assert_eq!(home.ask(), Some((1, 2)), "13 is over");
        assert_eq!(home.ask(), None, "they are asked for");
        home.requests.want(8);
        assert_eq!(home.ask(), Some((2, 1)));
        assert_eq!(home.take(2, 900), [(8, 900)], "answers may come in any order");
        assert_eq!(home.take(1, 800), [(3, 800), (5, 801)]);
        assert_eq!((home.take(1, 800), home.take(2, 900), home.take(9, 1)), (vec![], vec![], vec![]), "once");
    }

    #[test]
    fn what_may_be_lost_is_asked_for_again_and_a_late_answer_goes_to_nobody() {
        let mut home = Home::new();
        [5, 3].into_iter().for_each(|number| home.requests.want(number));
        assert_eq!(home.ask(), Some((1, 2)));
        // 3 has waited for too long, and asks by itself.
        home.requests.want(3);
        assert_eq!(home.ask(), Some((2, 1)));
        assert_eq!(home.take(1, 800), [(5, 801)]);
        home.requests.again();
        home.at.leaders.forget(NodeId(0));
        assert_eq!(home.ask(), None, "nobody leads");
        home.at.leaders.note(lead(0, 2), NodeId(0));
        assert_eq!(home.ask(), Some((3, 1)));
        assert_eq!((home.take(2, 900), home.take(3, 950)), (vec![], vec![(3, 950)]));
        home.requests.want(4);
        home.requests.stand();
        assert_eq!(home.ask(), None, "the node leads no more");
        home.requests.want(6);
        assert_eq!(home.ask(), Some((4, 1)), "numbers rise over terms");
    }

    /// The leader of the first partition.
    struct Leader {
        at: Bench,
        coordinator: Coordinator,
        place: u64,
    }

    impl Leader {
        fn new() -> Leader {
            let at = bench(0);
            Leader { coordinator: Coordinator::new(&at.site), at, place: 0 }
        }

        /// Has it do something; answers the stamps that it gives: request and first.
        fn tell(&mut self, act: impl FnOnce(&mut Coordinator, &mut Desk<'_>)) -> Vec<(u64, u64)> {
            let Leader { at, coordinator, .. } = self;
            let mut given = Vec::new();
            for (to, message) in at.tell(|desk| act(coordinator, desk)) {
                match message {
                    Message::Termed(Termed {
                        content: Protocol::Stamped(Stamped { number, first }), ..
                    }) => {
                        assert_eq!(to.node, NodeId(1));
                        given.push((number, first.micros().0));
                    }
                    other => panic!("{other:?}"),
                }
            }
            given
        }

        fn request(&mut self, from: Lead, number: u64, count: u32, after: u64) -> AttemptId {
            let after = Age::stamp(Micros(after), PartitionId(1));
            self.question(from, StampRequest { number, count, after }).unwrap()
        }

        fn question(&mut self, from: Lead, request: StampRequest) -> Option<AttemptId> {
            let mut question = None;
            let given = self.tell(|coordinator, desk| question = coordinator.count(from, request, desk));
            assert_eq!(given, [], "nothing is proven");
            question
        }

        fn prove(&mut self, question: AttemptId) -> Vec<(u64, u64)> {
            self.tell(|coordinator, desk| coordinator.proved(lead(0, 1), question, desk))
        }

        /// The log has agreed on a ceiling.
        fn reserve(&mut self, ceiling: u64) -> Vec<(u64, u64)> {
            for content in [Content::Begin, Content::Reserve(Millis(ceiling))] {
                if self.place > 0 && content == Content::Begin {
                    continue;
                }
                self.place += 1;
                let (place, term) = (Epoch(self.place), Term(1));
                let entry = Entry { place, term, now: Millis(0), content, agreed: None };
                self.at.agreed.apply(&Arc::new(entry)).unwrap();
            }
            self.tell(|coordinator, desk| coordinator.go_on_stamped(desk))
        }
    }

    #[test]
    fn stamps_are_given_once_it_is_proven_that_the_node_led_after_the_request() {
        let mut leader = Leader::new();
        leader.reserve(1_000);
        let first = leader.request(lead(1, 1), 1, 3, 0);
        let second = leader.request(lead(1, 1), 2, 1, 0);
        assert!(first < second && first.attempt == 0 && first.home() == lead(0, 1));
        // The bench's clock shows 5 ms.
        assert_eq!(leader.prove(first), [(1, 5_000)], "the second request came later");
        assert_eq!(leader.prove(first), [], "a proof counts once");
        assert_eq!(leader.prove(second), [(2, 5_003)], "no stamp is given twice");
        // The third question is never answered. The answer to the fourth, a later one, proves the third request too.
        leader.request(lead(1, 1), 3, 1, 0);
        let later = leader.request(lead(1, 1), 4, 1, 9_000);
        assert_eq!(leader.prove(later), [(3, 5_004), (4, 9_001)], "later than what the home has heard of");
    }

    #[test]
    fn a_proof_of_another_term_or_partition_proves_nothing() {
        let mut leader = Leader::new();
        leader.reserve(1_000);
        let question = leader.request(lead(1, 1), 1, 1, 0);
        let mut prove = |from, home| {
            let transaction = TransactionId { home, ..question.transaction };
            leader.tell(|of, desk| of.proved(from, AttemptId { transaction, ..question }, desk))
        };
        assert_eq!(prove(lead(1, 1), lead(0, 1)), []);
        assert_eq!(prove(lead(0, 1), lead(0, 2)), []);
        assert_eq!(prove(lead(0, 1), lead(0, 1)), [(1, 5_000)]);
    }

    #[test]
    fn stamps_stay_below_the_ceiling_and_in_the_order_of_requests() {
        let mut leader = Leader::new();
        leader.reserve(6);
        let question = leader.request(lead(1, 1), 1, 1_001, 0);
        assert_eq!(leader.prove(question), [], "the last would be at the ceiling");
        assert_eq!(leader.coordinator.take_wanted(), Some(Millis(6)));
        let question = leader.request(lead(1, 1), 2, 1, 0);
        assert_eq!(leader.prove(question), [], "there would be room for it alone");
        assert_eq!(leader.reserve(7), [(1, 5_000), (2, 6_001)]);
        assert_eq!(leader.reserve(8), []);
    }

    #[test]
    fn nothing_is_given_to_a_former_leader_or_by_one() {
        let mut leader = Leader::new();
        leader.reserve(1_000);
        let question = leader.request(lead(1, 1), 1, 2, 0);
        leader.at.leaders.note(lead(1, 2), NodeId(1));
        assert_eq!(leader.prove(question), [], "the home has another leader");
        let question = leader.request(lead(1, 2), 1, 2, 0);
        leader.coordinator.stand();
        assert_eq!(leader.prove(question), []);
        let next = leader.request(lead(1, 2), 1, 2, 0);
        assert!(next > question, "questions rise over terms");
        assert_eq!(leader.prove(next), [(1, 5_000)]);
    }

    #[test]
    fn requests_that_nobody_can_rightly_send_are_not_heeded() {
        let mut leader = Leader::new();
        for (count, after) in [(0, Age(1)), (LIVE_MAX as u32 + 1, Age(1)), (1, Age(u64::MAX))] {
            let request = StampRequest { number: 1, count, after };
            assert_eq!(leader.question(lead(1, 1), request), None, "{request:?}");
        }
        // Nor are any by a node that holds another partition.
        let mut other = Leader { coordinator: Coordinator::default(), at: bench(1), place: 0 };
        let request = StampRequest { number: 1, count: 1, after: Age(1) };
        assert_eq!(other.question(lead(0, 1), request), None);
    }
}
