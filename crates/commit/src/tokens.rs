//! Tokens that clients bring along from other nodes ([`crate::token`]): what of them is believed, and when.
//!
//! A token that is believed joins what the node's clients have seen ([`crate::known`]). From then on all that they ask for follows it, and so do
//! the versions that they write, on every partition. So a number that no log has reached would have its home refuse whatever follows it, and
//! a reader that never was would hold old versions for ever. Therefore:
//!
//! - A *number* of a home is believed if the home's log has come so far, by what this node knows already or by the word of who leads the
//!   home. That is always right: entries that are agreed on stay, whoever leads, and after a restart of all. Of a number between two decisions
//!   the lower one is believed: a home announces decisions alone, so that nobody's snapshot would cover what follows such a number.
//! - A *reader* is believed if who leads its home says that it is under way. Any other is dropped: if it has been, it is over, and reads
//!   nothing more that is confirmed. Of a term that the home has not come to, nothing is said.
//! - No word is no yes. A leader that was deposed may have an older log, so its no is not the last word either: the home is asked again, until
//!   [`WAIT_MAX`]. Then the client is answered, and nothing of its token has had an effect.
//!
//! A connection that brings a token waits for that answer; nobody else does. What waits is bounded ([`HELD_MAX`]), so the messages are too.

use std::collections::BTreeMap;

use ordain_model::outcome::OutcomeBatch;
use ordain_model::{
    Abort, Chunk, ChunkNo, Effect, Front, GatewayId, Micros, OutcomeStatus, PartitionId, Stamp, Token, Txn,
    Writer, codec, system,
};
use ordain_role::Address;

use crate::desk::Desk;
use crate::ids::AttemptId;
use crate::message::Relay;
use crate::token;
use crate::view::{Anti, Seen, View};

/// A token waits for the homes that it names for so long.
pub const WAIT_MAX: Micros = Micros::from_millis(5_000);
/// A home is asked again after so long.
const ASK_EVERY: Micros = Micros::from_millis(250);
/// The bytes of tokens that wait at most: a further one is answered BUSY.
const HELD_MAX: usize = 1 << 20;

/// Bytes that each counts for at least.
const WEIGHT_MIN: usize = 1 << 10;

const TOO_MANY_WAIT: &str = "BUSY too many tokens wait at this node for their homes: retry later";
const TOO_MANY_READERS: &str =
    "BUSY more transactions that only read are under way than a token has room for: ask for it again";

/// A question to who leads a home, about what a client has brought along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attest {
    /// Its number, which the sender gives once.
    pub question: u64,
    /// Has the home's log come so far?
    pub number: u64,
    /// Which of these readers of the home are under way?
    pub readers: Anti,
}

codec!(struct Attest { question, number, readers });

/// The answer of who leads a home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attested {
    /// The number of the question.
    pub question: u64,
    /// The home.
    pub home: PartitionId,
    /// The number that was asked about.
    pub number: u64,
    /// The home's last decision up to it, or an earlier one if the home has decided nothing since.
    pub decided: u64,
    /// The readers that are under way; `None` if the home has not come to the number, or to the term of a reader.
    pub readers: Option<Anti>,
}

codec!(struct Attested { question, home, number, decided, readers });

/// True if the node that takes a transaction answers it itself: nobody else can.
pub fn is_for_node(txn: &Txn) -> bool {
    txn.call.procedure == system::SEEN
}

/// Answers a question about this home, if the node leads it.
pub fn attest(
    question: &Attest,
    is_under_way: impl Fn(AttemptId) -> bool,
    desk: &Desk<'_>,
) -> Option<Attested> {
    let lead = desk.lead?;
    let is_possible = |who: AttemptId| who.home().partition == lead.partition && who.home().term <= lead.term;
    let has_come = question.number <= desk.agreed.place().0 && question.readers.iter().all(is_possible);
    let mut readers = question.readers.clone();
    readers.retain(is_under_way);
    let &Attest { question, number, .. } = question;
    let (home, readers) = (lead.partition, has_come.then_some(readers));
    Some(Attested { question, home, number, decided: number.min(desk.agreed.heard().of(home)), readers })
}

/// The place of the transaction that has brought a token.
type Asker = (GatewayId, ChunkNo, u32);

/// A token that waits.
#[derive(Debug)]
struct Waiting {
    asker: Asker,
    since: Micros,
    /// The bytes of the token.
    weight: usize,
    /// The part that is believed.
    sound: Seen,
    /// The rest.
    doubts: BTreeMap<PartitionId, Doubt>,
}

/// The part of a token about one home, while it is not believed.
#[derive(Debug)]
struct Doubt {
    number: u64,
    readers: Anti,
    /// The leader of the home says that its log has not come so far.
    is_beyond: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Tokens {
    /// The last question.
    last: u64,
    /// By the number of their questions.
    waiting: BTreeMap<u64, Waiting>,
    /// The bytes of the tokens that wait.
    held: usize,
    /// The time at which homes are asked again.
    due: Option<Micros>,
}

impl Tokens {
    /// No token waits; in this life of the node, whose questions are not those of an earlier one.
    pub const fn new(life: u64) -> Tokens {
        Tokens { last: life, waiting: BTreeMap::new(), held: 0, due: None }
    }

    /// Takes from a chunk what is for the node itself.
    pub fn take(&mut self, chunk: &Chunk, desk: &mut Desk<'_>) {
        for txn in chunk.txns().iter().filter(|txn| is_for_node(txn)) {
            let asker = (chunk.gateway, chunk.number, txn.index);
            match chunk.args(txn).get(0) {
                None => hand_out(asker, desk),
                Some(word) => self.take_in(asker, word, desk),
            }
        }
    }

    fn take_in(&mut self, asker: Asker, word: &[u8], desk: &mut Desk<'_>) {
        let seen = match token::read(word, desk.site.database, desk.site.layout.partitions()) {
            Ok(seen) => seen,
            Err(refusal) => return refuse(asker, Abort::Logic, &refusal.to_string(), desk),
        };
        let mut waiting = Waiting::new(asker, seen, desk);
        waiting.settle(desk);
        if waiting.doubts.is_empty() {
            return waiting.believe(desk);
        }
        // Each has questions of its own, asked again and again.
        waiting.weight = word.len().max(WEIGHT_MIN);
        if self.held + waiting.weight > HELD_MAX {
            return refuse(asker, Abort::Unavailable, TOO_MANY_WAIT, desk);
        }
        self.held += waiting.weight;
        self.last = self.last.wrapping_add(1);
        waiting.ask(self.last, desk);
        self.waiting.insert(self.last, waiting);
        self.due.get_or_insert(desk.elapsed().plus(ASK_EVERY));
    }

    /// Takes the word of who leads a home.
    pub fn attested(&mut self, answer: &Attested, desk: &mut Desk<'_>) {
        let Attested { question, home, number, decided, readers } = answer;
        let Some(waiting) = self.waiting.get_mut(question) else { return };
        // Questions of a former life of the node may have had the same numbers.
        let Some(doubt) = waiting.doubts.get_mut(home).filter(|doubt| doubt.number == *number) else {
            return;
        };
        let Some(under_way) = readers else {
            doubt.is_beyond = true;
            return;
        };
        waiting.sound.vector.raise(*home, doubt.number.min(*decided));
        let its = doubt.readers.iter().filter(|who| under_way.has(*who));
        its.for_each(|who| waiting.sound.anti.add(who));
        waiting.doubts.remove(home);
        if waiting.doubts.is_empty() {
            self.end(*question, |waiting| waiting.believe(desk));
        }
    }

    /// The time at which something is to be done by [`Tokens::pass`], if a token waits.
    pub const fn due(&self) -> Option<Micros> {
        self.due
    }

    /// Asks again, and answers what has waited for as long as it may.
    pub fn pass(&mut self, desk: &mut Desk<'_>) {
        if self.due.take_if(|due| *due <= desk.elapsed()).is_none() {
            return;
        }
        for question in self.waiting.keys().copied().collect::<Vec<u64>>() {
            let Some(waiting) = self.waiting.get_mut(&question) else { continue };
            waiting.settle(desk);
            if waiting.doubts.is_empty() {
                self.end(question, |waiting| waiting.believe(desk));
            } else if desk.elapsed().since(waiting.since) >= WAIT_MAX {
                self.end(question, |waiting| waiting.give_up(desk));
            } else {
                waiting.ask(question, desk);
            }
        }
        self.due = (!self.waiting.is_empty()).then(|| desk.elapsed().plus(ASK_EVERY));
    }

    fn end(&mut self, question: u64, answer: impl FnOnce(Waiting)) {
        if let Some(waiting) = self.waiting.remove(&question) {
            self.held -= waiting.weight;
            answer(waiting);
        }
    }

    /// Checks what must hold between two events.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), String> {
        let held: usize = self.waiting.values().map(|waiting| waiting.weight).sum();
        match self.waiting.iter().find(|(_, waiting)| waiting.doubts.is_empty()) {
            Some((question, _)) => Err(format!("token {question} is believed and waits")),
            None if held != self.held => {
                Err(format!("tokens of {held} bytes wait, counted are {}", self.held))
            }
            None if self.due.is_none() && held > 0 => {
                Err("tokens wait and no home is asked again".to_owned())
            }
            None => Ok(()),
        }
    }
}

impl Waiting {
    /// A token of which nothing is believed yet but readers that the node knows.
    fn new(asker: Asker, seen: Seen, desk: &Desk<'_>) -> Waiting {
        let of = |home| Doubt { number: seen.vector.of(home), readers: Anti::default(), is_beyond: false };
        let homes = (0..desk.site.layout.partitions()).map(PartitionId);
        let named = homes.filter(|home| seen.vector.of(*home) > 0);
        let mut doubts: BTreeMap<PartitionId, Doubt> = named.map(|home| (home, of(home))).collect();
        let known = &desk.known.seen().anti;
        for who in seen.anti.iter().filter(|who| !known.has(*who)) {
            let home = who.home().partition;
            doubts.entry(home).or_insert_with(|| of(home)).readers.add(who);
        }
        Waiting { asker, since: desk.elapsed(), weight: 0, sound: Seen::NOTHING, doubts }
    }

    /// Believes what this node knows by itself: what its log has heard of or its clients have seen, and that readers are over.
    fn settle(&mut self, desk: &Desk<'_>) {
        let Waiting { sound, doubts, .. } = self;
        doubts.retain(|home, doubt| {
            doubt.readers.retain(|who| desk.agreed.living().has(who));
            let believed = believed(*home, doubt.number, desk).filter(|_| doubt.readers.is_empty());
            let is_sound = believed.is_some();
            believed.into_iter().for_each(|number| sound.vector.raise(*home, number));
            !is_sound
        });
    }

    /// Asks who leads the homes that are in doubt.
    fn ask(&self, question: u64, desk: &mut Desk<'_>) {
        for (home, Doubt { number, readers, .. }) in &self.doubts {
            if let Some((node, _)) = desk.leaders.reached(*home) {
                let manager = Address { node, role: desk.site.manager };
                let (number, readers) = (*number, readers.clone());
                desk.out.send(manager, Relay::Attest(Attest { question, number, readers }));
            }
        }
    }

    /// All of it is believed.
    fn believe(self, desk: &mut Desk<'_>) {
        desk.known.see(&View::of(self.sound), desk.agreed.living());
        answer(self.asker, OutcomeStatus::Committed, desk, |w| w.ok());
    }

    /// The token has waited for too long.
    fn give_up(self, desk: &mut Desk<'_>) {
        let beyond = self.doubts.iter().find(|(_, doubt)| doubt.is_beyond);
        if let Some((PartitionId(home), _)) = beyond {
            let text = format!(
                "ERR this token names what partition {home} has not come to: it is of another database, or of a state \
                 that was lost or restored away; go on without it"
            );
            return refuse(self.asker, Abort::Logic, &text, desk);
        }
        let silent = self.doubts.keys().next().map_or(0, |PartitionId(home)| *home);
        let text = format!(
            "BUSY partition {silent} has no leader to confirm what this token names of it: retry later, or go on \
             without it"
        );
        refuse(self.asker, Abort::Unavailable, &text, desk);
    }
}

/// The decision that is believed for a number of a home, if this node knows by itself that the home's log has come so far.
fn believed(home: PartitionId, number: u64, desk: &Desk<'_>) -> Option<u64> {
    let decided = desk.agreed.heard().of(home).max(desk.known.seen().vector.of(home));
    let is_own = home == desk.site.partition && number <= desk.agreed.place().0;
    (is_own || number <= decided).then_some(number.min(decided))
}

/// Answers what the clients of this node have seen.
fn hand_out(asker: Asker, desk: &mut Desk<'_>) {
    let mut seen = desk.known.seen().clone();
    seen.anti.retain(|who| desk.agreed.living().has(who));
    match token::write(&seen, desk.site.database) {
        Some(word) => answer(asker, OutcomeStatus::Committed, desk, |w| w.bulk(&word)),
        None => refuse(asker, Abort::Unavailable, TOO_MANY_READERS, desk),
    }
}

fn refuse(asker: Asker, abort: Abort, text: &str, desk: &mut Desk<'_>) {
    answer(asker, OutcomeStatus::Aborted(abort), desk, |w| w.error(text));
}

fn answer(
    (gateway, chunk, index): Asker,
    status: OutcomeStatus,
    desk: &mut Desk<'_>,
    write: impl FnOnce(&mut Writer<'_>),
) {
    let mut batch = OutcomeBatch::new(gateway);
    let effect = Effect { stamp: Stamp::NONE, token: Token::NOTHING };
    batch.push(chunk, index, effect, status, |out| write(&mut Writer(out)));
    desk.out.send(desk.site.gateway(gateway), Front::Outcomes(batch));
}

#[cfg(test)]
mod tests {
    use ordain_model::{Call, Db, Epoch, Millis};
    use ordain_role::NodeId;

    use super::*;
    use crate::bench::Bench;
    use crate::concurrency::Snapshots;
    use crate::entry::{Announced, Commit, Content, Entry};
    use crate::ids::{Lead, Term, TransactionId};
    use crate::message::Message;
    use crate::view::Vector;

    const OWN: PartitionId = PartitionId(0);
    const OTHER: PartitionId = PartitionId(1);
    const DATABASE: u32 = 7;

    fn lead(partition: PartitionId, term: u64) -> Lead {
        Lead { partition, term: Term(term) }
    }

    fn who(home: Lead, number: u64) -> AttemptId {
        AttemptId { transaction: TransactionId { home, number }, attempt: 1 }
    }

    fn seen(numbers: [u64; 2], readers: &[AttemptId]) -> Seen {
        let mut seen = Seen::NOTHING;
        seen.vector.raise(OWN, numbers[0]);
        seen.vector.raise(OTHER, numbers[1]);
        readers.iter().for_each(|who| seen.anti.add(*who));
        seen
    }

    /// The messages of the node: questions with the nodes that are asked, and the replies of its front door.
    #[derive(Debug, Default, PartialEq)]
    struct Sent {
        asked: Vec<(u16, Attest)>,
        replies: Vec<String>,
    }

    impl Sent {
        fn is_nothing(&self) -> bool {
            *self == Sent::default()
        }

        /// The only reply, where nobody is asked.
        fn reply(&self) -> &str {
            assert!(self.asked.is_empty(), "{self:?}");
            match &self.replies[..] {
                [reply] => reply,
                _ => panic!("{self:?}"),
            }
        }
    }

    /// The first of four nodes, and of two partitions; node 1 leads the other.
    struct Node {
        at: Bench,
        tokens: Tokens,
        chunks: u64,
        place: u64,
    }

    impl Node {
        fn new() -> Node {
            let mut at = Bench::new(0);
            at.site.snapshots = Snapshots::AtFirstRead;
            system::register(std::sync::Arc::get_mut(&mut at.site.registry).unwrap());
            at.leaders.note(lead(OTHER, 3), NodeId(1));
            let mut node = Node { at, tokens: Tokens::new(100), chunks: 0, place: 0 };
            node.apply(1, Content::Begin);
            node
        }

        fn apply(&mut self, place: u64, content: Content) {
            self.place = place;
            let entry = Entry { place: Epoch(place), term: Term(1), now: Millis(0), content, agreed: None };
            self.at.agreed.apply(&std::sync::Arc::new(entry)).unwrap();
        }

        /// The node's log hears how far the other home is.
        fn hears(&mut self, number: u64) {
            let said = Announced { home: lead(OTHER, 3), number, readers: 0.into() };
            self.apply(self.place + 1, Content::Announce(vec![said]));
        }

        /// The node's home decides with this number.
        fn decides(&mut self, place: u64) {
            let (attempt, view) = (who(lead(OWN, 1), 1), View::of(Seen::NOTHING));
            self.apply(place, Content::Commit(Commit { attempt, view, ..Commit::default() }));
        }

        fn tell(&mut self, act: impl FnOnce(&mut Tokens, &mut Desk<'_>)) -> Sent {
            let Node { at, tokens, .. } = self;
            let mut sent = Sent::default();
            for (to, message) in at.tell(|desk| act(tokens, desk)) {
                match message {
                    Message::Relay(Relay::Attest(question)) => sent.asked.push((to.node.0, question)),
                    Message::Front(Front::Outcomes(batch)) => {
                        let outcomes = batch.outcomes.iter();
                        let text = |reply: &[u8]| String::from_utf8_lossy(reply).into_owned();
                        sent.replies.extend(outcomes.map(|outcome| text(batch.reply(outcome))));
                    }
                    other => panic!("{other:?}"),
                }
            }
            tokens.check().unwrap();
            sent
        }

        /// A client asks for a token, or brings this word.
        fn ask(&mut self, word: Option<&[u8]>) -> Sent {
            let gateway = GatewayId::of(0, 0);
            let mut chunk =
                Chunk::new(gateway, ChunkNo(self.chunks)).in_cluster(0, self.at.site.layout.clone());
            self.chunks += 1;
            let args = |args: &mut ordain_model::ArgsBuilder<'_>| {
                word.into_iter().for_each(|word| _ = args.push(word))
            };
            chunk.push(&self.at.site.registry, Call::new(system::SEEN, Db(0)), args).unwrap();
            self.tell(|tokens, desk| tokens.take(&chunk, desk))
        }

        fn bring(&mut self, seen: &Seen) -> Sent {
            self.ask(Some(&token::write(seen, DATABASE).unwrap()))
        }

        fn attested(&mut self, question: u64, readers: Option<&[AttemptId]>) -> Sent {
            let readers = readers.map(|readers| seen([0, 0], readers).anti);
            let asked = self.tokens.waiting.get(&question).and_then(|waiting| waiting.doubts.get(&OTHER));
            let number = asked.map_or(0, |doubt| doubt.number);
            let answer = Attested { question, home: OTHER, number, decided: number, readers };
            self.tell(|tokens, desk| tokens.attested(&answer, desk))
        }

        fn pass(&mut self, millis: u64) -> Sent {
            self.at.elapsed = Micros::from_millis(millis);
            self.tell(Tokens::pass)
        }

        fn believes(&self, numbers: [u64; 2], readers: &[AttemptId]) -> bool {
            *self.at.known.seen() == seen(numbers, readers)
        }
    }

    fn is_ok(sent: &Sent) -> bool {
        sent.reply().contains("OK")
    }

    #[test]
    fn what_is_known_by_itself_is_believed_at_once() {
        let mut node = Node::new();
        node.apply(9, Content::Mark);
        node.hears(40);
        assert!(
            is_ok(&node.bring(&seen([10, 40], &[]))),
            "its own log has come so far, and has heard of that"
        );
        assert!(node.believes([0, 40], &[]), "this home has decided nothing");
        // A node takes the token that it hands out.
        let sent = node.ask(None);
        let reply = sent.reply();
        let word = &reply[reply.find('A').unwrap()..];
        assert!(is_ok(&node.ask(Some(word.as_bytes()))));
        assert!(is_ok(&node.ask(Some(&token::write(&Seen::NOTHING, DATABASE).unwrap()))));
    }

    #[test]
    fn a_number_that_nobody_here_has_heard_of_waits_for_the_word_of_its_home() {
        let mut node = Node::new();
        let sent = node.bring(&seen([0, 41], &[]));
        let question = Attest { question: 101, number: 41, readers: Anti::default() };
        assert_eq!(sent, Sent { asked: vec![(1, question)], replies: vec![] });
        assert!(node.believes([0, 0], &[]));
        assert!(node.attested(100, Some(&[])).is_nothing(), "of an earlier life");
        assert!(node.attested(101, None).is_nothing(), "a leader that was deposed may say so");
        assert!(node.believes([0, 0], &[]));
        assert!(is_ok(&node.attested(101, Some(&[]))));
        assert!(node.believes([0, 41], &[]));
        assert!(node.attested(101, Some(&[])).is_nothing(), "once");
        assert_eq!((node.pass(9_000), node.tokens.due()), (Sent::default(), None));
    }

    /// Nobody's snapshot would cover a number between two decisions, or what follows it, before the home decides again.
    #[test]
    fn of_a_number_that_is_no_decision_the_one_before_it_is_believed() {
        let mut node = Node::new();
        let _ = node.bring(&seen([0, 41], &[]));
        let says = |number, decided| Attested {
            question: 101,
            home: OTHER,
            number,
            decided,
            readers: Some(Anti::default()),
        };
        let told = |node: &mut Node, answer| node.tell(|tokens, desk| tokens.attested(&answer, desk));
        assert!(told(&mut node, says(40, 40)).is_nothing(), "another was asked about, in a former life");
        assert!(is_ok(&told(&mut node, says(41, 38))));
        assert!(node.believes([0, 38], &[]));
        // The home itself: its log is at 12, and has decided 2 alone.
        let mut home = Node::new();
        home.decides(2);
        home.apply(12, Content::Mark);
        let question = Attest { question: 1, number: 10, readers: Anti::default() };
        home.at.lead = Some(lead(OWN, 1));
        let mut answer = None;
        home.at.tell(|desk| answer = attest(&question, |_| true, desk));
        assert_eq!(answer.map(|answer| (answer.number, answer.decided)), Some((10, 2)));
        assert!(is_ok(&home.bring(&seen([10, 0], &[]))));
        assert!(home.believes([2, 0], &[]));
    }

    #[test]
    fn the_log_may_hear_of_the_number_while_the_home_is_silent() {
        let mut node = Node::new();
        let _ = node.bring(&seen([0, 41], &[]));
        node.hears(40);
        assert_eq!(node.pass(300).asked.len(), 1, "it is asked again");
        node.hears(41);
        assert!(is_ok(&node.pass(600)));
        assert!(node.believes([0, 41], &[]));
    }

    #[test]
    fn a_number_out_of_the_future_is_refused_in_the_end_and_has_no_effect() {
        let mut node = Node::new();
        assert_eq!(node.bring(&seen([0, 1 << 60], &[])).asked.len(), 1);
        let mut asked = 0;
        for millis in (0..5_000).step_by(250) {
            let sent = node.pass(millis);
            sent.asked.iter().for_each(|_| assert!(node.attested(101, None).is_nothing()));
            asked += sent.asked.len();
        }
        assert_eq!(asked, 19);
        assert!(node.pass(5_100).reply().contains("ERR this token names what partition 1 has not come to"));
        assert!(node.attested(101, Some(&[])).is_nothing(), "too late");
        assert!(node.believes([0, 0], &[]));
        // Of its own partition, of which nobody is known to lead it: nobody says no.
        assert!(node.bring(&seen([1 << 60, 0], &[])).is_nothing());
        assert!(node.pass(11_000).reply().contains("BUSY partition 0 has no leader"));
        assert!(node.believes([0, 0], &[]));
    }

    #[test]
    fn readers_are_believed_if_their_home_says_that_they_are_under_way() {
        let mut node = Node::new();
        let [live, over, forged] = [who(lead(OTHER, 3), 5), who(lead(OTHER, 3), 6), who(lead(OTHER, 3), 7)];
        let sent = node.bring(&seen([0, 2], &[live, over]));
        assert_eq!(
            sent.asked[0].1,
            Attest { question: 101, number: 2, readers: seen([0, 0], &[live, over]).anti }
        );
        assert!(is_ok(&node.attested(101, Some(&[live, forged]))), "what was not asked is not taken");
        assert!(node.believes([0, 2], &[live]));
        assert!(is_ok(&node.bring(&seen([0, 2], &[live]))), "it is known here");
        // The log has it that the home has none below 8.
        let said = Announced { home: lead(OTHER, 3), number: 2, readers: 8.into() };
        node.apply(node.place + 1, Content::Announce(vec![said]));
        assert!(is_ok(&node.bring(&seen([0, 2], &[over]))), "it is over");
        assert!(node.believes([0, 2], &[]));
    }

    #[test]
    fn a_word_that_is_no_token_is_refused_before_any_effect() {
        let mut node = Node::new();
        assert!(node.ask(Some(b"17")).reply().contains("ERR this is no token"));
        let foreign = token::write(&seen([0, 1], &[]), DATABASE + 1).unwrap();
        assert!(node.ask(Some(&foreign)).reply().contains("ERR this token is of another cluster or engine"));
        assert!(node.believes([0, 0], &[]) && node.tokens.due().is_none());
    }

    /// A further token is turned away at once, and those that wait are not disturbed.
    #[test]
    fn tokens_that_wait_are_bounded() {
        let mut node = Node::new();
        let readers: Vec<AttemptId> = (0..4_000).map(|number| who(lead(OTHER, 3), number * 1_000)).collect();
        let large = seen([0, 1 << 60], &readers);
        let word = token::write(&large, DATABASE).map_or(0, |word| word.len());
        assert!(word > 8_000, "{word}");
        let mut taken = 0;
        while node.bring(&large).replies.is_empty() {
            taken += 1;
        }
        assert_eq!(taken, HELD_MAX / word);
        assert!(node.bring(&large).reply().contains("BUSY too many tokens wait"));
        assert!(
            is_ok(&node.bring(&Seen { vector: Vector::NOTHING, anti: Anti::default() })),
            "what need not wait does not"
        );
        assert_eq!(node.pass(6_000).replies.len(), taken);
        assert_eq!(node.tokens.held, 0);
    }

    #[test]
    fn only_who_leads_a_home_says_how_far_it_is() {
        let mut node = Node::new();
        node.apply(9, Content::Mark);
        let own = |term, number| who(lead(OWN, term), number);
        let mut says = |number: u64, readers: &[AttemptId], leads: Option<u64>| {
            node.at.lead = leads.map(|term| lead(OWN, term));
            let question = Attest { question: 1, number, readers: seen([0, 0], readers).anti };
            let mut answer = None;
            node.at.tell(|desk| answer = attest(&question, |who| who == own(4, 2), desk));
            answer.map(|answer| answer.readers.map(|readers| readers.iter().collect::<Vec<_>>()))
        };
        assert_eq!(says(9, &[], None), None);
        assert_eq!(says(9, &[], Some(4)), Some(Some(vec![])));
        assert_eq!(says(10, &[], Some(4)), Some(None), "out of the future");
        assert_eq!(says(9, &[own(3, 1), own(4, 1), own(4, 2)], Some(4)), Some(Some(vec![own(4, 2)])));
        assert_eq!(says(9, &[own(5, 2)], Some(4)), Some(None), "of a term to come");
        assert_eq!(says(9, &[who(lead(OTHER, 1), 2)], Some(4)), Some(None), "of another home");
    }
}
