//! The manager of a partition on a node: coordinator of the transactions at home here, cohort of those elsewhere, relay of the
//! front doors of its node.
//!
//! The manager hears the partition's log, on every member, and speaks for the partition while its node leads. All that it does
//! for the partition is of one term ([`Manager::begin`], [`Manager::stand`]); what outlives the term is [`Agreed`].

use std::sync::Arc;

use ordain_checkpoint::Outcome;
use ordain_family::TAKES_TRANSACTIONS;
use ordain_model::{Doubts, Epoch, Front, Micros, Millis, OpenId, OutcomeBatch};
use ordain_replication::Log;
use ordain_role::{Address, Bug, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role, TimerId, Topology};

use crate::agreed::{Agreed, Effect};
use crate::announcing::Hearing;
use crate::cohort::Cohort;
use crate::concurrency::Snapshots;
use crate::coordinator::Coordinator;
use crate::cuts::Cuts;
use crate::desk::{Appender, Departing, Desk, Leaders, Site};
use crate::entry::{Announced, Content, Entry};
use crate::figures::{self, Traffic};
use crate::founding::Founding;
use crate::hearsay::Hearsay;
use crate::ids::{Age, Bounds, Lead, Term};
use crate::image::Image;
use crate::known::Known;
use crate::message::{
    ConfirmRequest, Message, Own, Protocol, Relay as RelayMessage, Returned, Snapshot, Termed,
};
use crate::regions::Views;
use crate::relay::{Own as OwnPart, Relay};
use crate::saving::{Giver, Giving};
use crate::times::Reservation;
use crate::tokens::{Tokens, attest};
use crate::view::View;
use crate::viewing::Laid;
use crate::waits_for::WaitsFor;

const TIMER: TimerId = TimerId(1);
/// The answers of a node that cannot be reached are given up after so long.
const AWAY_FOR: Micros = Micros::from_millis(1_200);
/// Goes on giving a checkpoint away.
const GIVE: TimerId = TimerId(2);
/// Something that waits for a leader is looked after this often.
const LOOK_EVERY: Micros = Micros::from_millis(100);

/// See the module.
#[derive(Debug)]
pub struct Manager {
    site: Site,
    topology: Topology,
    /// Members agree on the log: they say who leads. A node on its own begins a term by an entry.
    has_members: bool,
    agreed: Agreed,
    leaders: Leaders,
    views: Views,
    appender: Appender,
    departing: Departing,
    coordinator: Coordinator,
    cohort: Cohort,
    reservation: Reservation,
    /// Waits at the participants of this node, while it leads.
    waits: WaitsFor,
    relay: Relay,
    tokens: Tokens,
    hearsay: Hearsay,
    known: Known,
    hearing: Hearing,
    cuts: Cuts,
    giver: Giver,
    /// The first meeting of all nodes, while this one waits for it.
    founding: Option<Founding>,
    /// The claim of this node, while it serves its partition.
    lead: Option<Lead>,
    /// A term that begins.
    begins: Option<Beginning>,
    /// The term of the group in which the log has this node lead, if it does.
    leads: Option<u64>,
    /// The last term that this node has proposed to begin.
    claimed: Term,
    /// No transaction sees an earlier time.
    clock: Millis,
    /// Claims that were heard in a term which is over, or from elsewhere: dropped messages.
    dropped: u64,
    /// Claims of nodes that are not members of the partition, which were not heard.
    strangers: u64,
    traffic: Traffic,
    /// Where an operator finds what is in doubt here.
    doubts: Doubts,
}

/// A term that begins: first its entry is agreed on, then every participant of the node is made ready.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    lead: Lead,
    /// The participants that are not ready.
    missing: usize,
}

/// The parts of a manager that an event reaches, beside its desk.
macro_rules! desk {
    ($self:ident, $now:expr, $out:expr) => {
        Desk {
            site: &$self.site,
            agreed: &$self.agreed,
            leaders: &$self.leaders,
            views: &$self.views,
            lead: $self.lead,
            appender: &mut $self.appender,
            departing: &mut $self.departing,
            traffic: &mut $self.traffic,
            clock: $self.clock,
            heard: $self.coordinator.heard(),
            known: &mut $self.known,
            now: $now,
            out: $out,
        }
    };
}

mod checkpoints;
mod meeting;
#[cfg(test)]
mod tests;
mod waits;

impl Manager {
    /// A manager in a cluster that has heard nothing yet.
    pub fn new(site: Site, topology: Topology) -> Manager {
        let agreed = Agreed::default().planting(site.bugs);
        let known = Known::planting(site.bugs).telling(site.propagation.fresh_begin);
        let (life, waits) = (site.life, WaitsFor::default().planting(site.bugs));
        Manager {
            coordinator: Coordinator::new(&site),
            site,
            has_members: topology.replicas > 1,
            topology,
            agreed,
            leaders: Leaders::default(),
            views: Views::default(),
            appender: Appender::default(),
            departing: Departing::default(),
            cohort: Cohort::default(),
            reservation: Reservation::default(),
            waits,
            relay: Relay::default(),
            tokens: Tokens::new(life),
            hearsay: Hearsay::default(),
            known,
            hearing: Hearing::default(),
            cuts: Cuts::default(),
            giver: Giver::default(),
            founding: None,
            lead: None,
            begins: None,
            leads: None,
            claimed: Term(0),
            clock: Millis(0),
            dropped: 0,
            strangers: 0,
            traffic: Traffic::default(),
            doubts: Doubts::default(),
        }
    }

    /// Applies an entry that the log held when the node was started.
    ///
    /// # Errors
    /// The entry contradicts those before it.
    pub fn replay(&mut self, entry: &Arc<Entry>) -> Result<(), String> {
        self.agreed.apply(entry)?;
        self.note_replayed();
        Ok(())
    }

    fn note_replayed(&mut self) {
        self.appender.note(self.agreed.place());
        self.appender.reserve(self.agreed.ceiling());
        // No later transaction sees an earlier time, wherever the clock stands.
        self.clock = self.clock.max(self.agreed.now());
        self.cuts.replayed(self.agreed.cut());
    }

    /// Begins with the state behind a cut, beside the outcomes of sessions.
    ///
    /// # Errors
    /// The image is none of such a state.
    pub fn begin_from(&mut self, cut: Epoch, image: &Image) -> Result<(), String> {
        self.agreed.begin(cut, image)?;
        self.note_replayed();
        Ok(())
    }

    /// Puts in the outcome of a session's last request, as a checkpoint holds it.
    pub fn restore_outcome(&mut self, outcome: &Outcome<'_>) {
        self.agreed.put(outcome);
    }

    /// Sets where an operator finds what is in doubt here.
    #[must_use]
    pub fn with_doubts(self, doubts: Doubts) -> Manager {
        Manager { doubts, ..self }
    }

    /// Gives its part of checkpoints away.
    pub fn set_giving(&mut self, giving: Giving) {
        self.giver.set(giving);
    }

    /// The agreed state of the partition.
    pub const fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    // ---- terms ---------------------------------------------------------------------------------------------

    /// The node leads its partition, in that term of the group if there is one: it serves in a term of its own as soon as that is agreed
    /// on and its participants are ready.
    fn begin(&mut self, group: Option<u64>, now: Now, out: &mut Outbox<Message>) {
        self.stand(now, out);
        let first = group.map_or(Term(self.site.life), Term::first_of);
        let term = first.max(self.agreed.term().next()).max(self.claimed.next());
        self.claimed = term;
        let lead = Lead { partition: self.site.partition, term };
        self.begins = Some(Beginning { lead, missing: self.site.own_participants().count() });
        let clock = self.clock;
        let mut desk = Desk { lead: Some(lead), ..desk!(self, now, out) };
        desk.append(clock, Content::Begin);
    }

    /// A term has begun in the log.
    fn begun(&mut self, term: Term, now: Now, out: &mut Outbox<Message>) {
        let Some(beginning) = self.begins.filter(|beginning| beginning.lead.term == term) else {
            // Another node's, or one that this node has given up.
            return;
        };
        let (term, place) = (beginning.lead.term, self.agreed.place());
        desk!(self, now, out).tell_own(|| Own::Serve(term, place));
    }

    /// A participant is ready to serve in a term.
    fn ready(&mut self, term: Term, now: Now, out: &mut Outbox<Message>) {
        let Some(Beginning { lead, missing }) = &mut self.begins else { return };
        if lead.term != term {
            return;
        }
        *missing -= 1;
        if *missing > 0 {
            return;
        }
        let lead = *lead;
        self.begins = None;
        self.lead = Some(lead);
        if self.site.snapshots != Snapshots::Never {
            // What its log holds was answered, or is about to be, by whoever led before.
            self.known.see(&View::of(self.agreed.followed().clone()), self.agreed.living());
        }
        self.coordinator.begin_stamping(&desk!(self, now, out));
        for node in (0..self.site.nodes).map(NodeId).filter(|node| *node != self.site.node) {
            out.send(Address { node, role: self.site.manager }, Message::Leads(lead));
        }
        self.hear(lead, self.site.node, now, out);
        let mut desk = desk!(self, now, out);
        // Before anything else of this term: what this node has heard of others may be behind the cut.
        self.cuts.mark(&mut desk);
        self.coordinator.begin(&mut desk);
        self.cohort.begin(&mut desk);
    }

    /// The node leads its partition no more.
    fn stand(&mut self, now: Now, out: &mut Outbox<Message>) {
        self.begins = None;
        self.leaders.forget(self.site.node);
        let mut desk = desk!(self, now, out);
        desk.tell_own(|| Own::Stand);
        desk.lay_everywhere(&Laid::Cleared);
        let returned = self.coordinator.stand();
        self.cohort.stand();
        self.hearing.stand();
        self.waits.clear();
        self.reservation = Reservation::default();
        let savers = self.cuts.stand();
        self.answer_savers(savers);
        self.lead = None;
        self.departing = Departing::default();
        self.give_back(returned, now, out);
    }

    /// Gives transactions back to the nodes that have passed them on: they have no effect.
    fn give_back(&mut self, all: Vec<Returned>, now: Now, out: &mut Outbox<Message>) {
        for returned in all {
            let node = NodeId(returned.gateway.node());
            if node == self.site.node {
                let mut desk = desk!(self, now, out);
                self.relay.give_back(node, &returned, &mut desk);
            } else {
                let manager = Address { node, role: self.site.manager };
                out.send(manager, RelayMessage::Return(returned));
            }
        }
        self.retry_relay(now, out);
    }

    fn retry_relay(&mut self, now: Now, out: &mut Outbox<Message>) {
        let own = self.relay.retry(&mut desk!(self, now, out));
        self.take_own_part(own, now, out);
    }

    /// Takes what the relay has for the coordinator of this very node.
    fn take_own_part(&mut self, own: Vec<OwnPart>, now: Now, out: &mut Outbox<Message>) {
        let mut desk = desk!(self, now, out);
        for OwnPart { chunk, places, step } in own {
            match step {
                Some(step) => self.coordinator.take_step(step, &chunk, &mut desk),
                None => self.coordinator.take(&chunk, places, &mut desk),
            }
        }
    }

    /// Takes the claim of another node to lead a partition. It is refused if the node does not hold that partition: by such a
    /// claim it would be given what only a member may decide.
    fn take_claim(&mut self, lead: Lead, node: NodeId, now: Now, out: &mut Outbox<Message>) {
        let is_partition = lead.partition.0 < self.topology.layout.partitions();
        let is_member = self.topology.partition_of(node) == lead.partition && self.topology.is_server(node);
        if !is_partition || !is_member {
            self.strangers += 1;
            return;
        }
        self.hear(lead, node, now, out);
    }

    /// Hears who leads a partition.
    fn hear(&mut self, lead: Lead, node: NodeId, now: Now, out: &mut Outbox<Message>) {
        // Planted, OF-ITS-TERM: a node that takes itself for the leader hears of no other.
        let keeps = self.site.bugs.has(Bug::KeepClaim)
            && self.lead.is_some_and(|own| own.partition == lead.partition);
        if keeps && node != self.site.node || !self.leaders.note(lead, node) {
            return;
        }
        let own = self.lead.or(self.begins.map(|beginning| beginning.lead));
        if own.is_some_and(|own| own.partition == lead.partition && own.term < lead.term) {
            // The word of a successor may come before the log's.
            self.stand(now, out);
        }
        let mut desk = desk!(self, now, out);
        self.relay.move_on(lead, &mut desk);
        desk.tell_own(|| Own::Home(lead));
        if node != self.site.node {
            let still = self.coordinator.still();
            for shard in self.site.layout.shards_of(lead.partition) {
                desk.tell_participant(shard, lead.term, Protocol::Still(still.clone()));
            }
        }
        self.coordinator.disturbed(lead.partition, &mut desk);
        self.cohort.disturbed(lead.partition, &mut desk);
        self.retry_relay(now, out);
    }

    // ---- the log -------------------------------------------------------------------------------------------

    fn take_log(&mut self, message: Log<Arc<Entry>>, now: Now, out: &mut Outbox<Message>) {
        match message {
            Log::Sealed(entry) => self.sealed(&entry, now, out),
            Log::Logged(_) => {}
            Log::Durable(place) => self.coordinator.durable(place, &mut desk!(self, now, out)),
            Log::Confirmed { n, term } => {
                // A node on its own leads in the term that it has begun: nobody else can.
                let group =
                    if self.has_members { term } else { self.lead.map_or(0, |lead| lead.term.of_group()) };
                self.cohort.confirmed(n, Some(group), &mut desk!(self, now, out));
            }
            Log::Obstacle(reason) => self.relay.set_obstacle(reason),
            Log::NotConfirmed { n } => self.cohort.confirmed(n, None, &mut desk!(self, now, out)),
            Log::Rejected(entry) => {
                self.appender.set_full(true);
                self.unwritten(&entry, now, out);
            }
            Log::Writable => {
                self.appender.set_full(false);
                if self.founding.is_some() {
                    self.found(now, out);
                } else if self.lead.is_none() && self.begins.is_none() {
                    match self.leads {
                        _ if !self.has_members => self.begin(None, now, out),
                        // The beginning of its term had no room.
                        Some(term) => self.begin(Some(term), now, out),
                        None => {}
                    }
                }
                let mut desk = desk!(self, now, out);
                self.cohort.go_on(&mut desk);
                self.coordinator.go_on_voting(&mut desk);
                self.reservation.go_on(&mut desk);
            }
            Log::Lost(entry) => match &entry.content {
                Content::Commit(commit) => {
                    let returned = self.coordinator.lost(commit.attempt.transaction.number);
                    self.give_back(returned, now, out);
                }
                _ if self.lead.is_some_and(|lead| lead.term == entry.term) => {
                    self.unwritten(&entry, now, out)
                }
                Content::Prepare(prepare) if prepare.among.is_some() => {
                    let returned = self.coordinator.lost(prepare.attempt.transaction.number);
                    self.give_back(returned, now, out);
                }
                Content::Begin if self.begins.is_some_and(|beginning| beginning.lead.term == entry.term) => {
                    // The log says when this node leads again.
                    self.begins = None;
                }
                _ => {}
            },
            Log::Leader { term, is_me, last, .. } => {
                self.appender.note(last);
                self.leads = is_me.then_some(term);
                let serves = self.lead.or(self.begins.map(|beginning| beginning.lead));
                // Planted, OF-ITS-TERM.
                let keeps = self.site.bugs.has(Bug::KeepClaim);
                match (is_me, serves) {
                    (_, Some(_)) if keeps => {}
                    (true, Some(lead)) if lead.term.of_group() == term => {}
                    (true, _) => self.begin(Some(term), now, out),
                    (false, Some(_)) => self.stand(now, out),
                    (false, None) => {}
                }
            }
            message => out.halt(format!("a manager was sent a message that is not for it: {message:?}")),
        }
    }

    /// An entry is agreed on.
    fn sealed(&mut self, entry: &Arc<Entry>, now: Now, out: &mut Outbox<Message>) {
        match self.agreed.apply(entry) {
            Ok(Effect::Applied) => {}
            Ok(Effect::Void) => {
                let lost = match &entry.content {
                    Content::Commit(commit) => Some(commit.attempt),
                    Content::Prepare(prepare) if prepare.among.is_some() => Some(prepare.attempt),
                    _ => None,
                };
                if let Some(attempt) = lost {
                    let returned = self.coordinator.lost(attempt.transaction.number);
                    self.give_back(returned, now, out);
                }
                return;
            }
            Err(reason) => return out.halt(format!("the log contradicts itself: {reason}")),
        }
        self.appender.note(entry.place);
        self.appender.reserve(self.agreed.ceiling());
        self.clock = self.clock.max(entry.now);
        self.known.outlive(self.agreed.living());
        self.giver.applied();
        if matches!(entry.content, Content::Mark) {
            self.giver.cut(entry.place, &mut self.agreed, self.site.bugs, out);
        }
        self.cuts.applied(entry, entry.weight(), &mut desk!(self, now, out));
        if let Content::Meet(met) = &entry.content {
            return self.met(*met, now, out);
        }
        if matches!(entry.content, Content::Begin) {
            return self.begun(entry.term, now, out);
        }
        let speaks = self.lead.is_some_and(|lead| lead.term == entry.term);
        let mut desk = desk!(self, now, out);
        if speaks {
            self.cohort.go_on_reserved(&mut desk);
        }
        match &entry.content {
            // Its client is answered also by a node that leads no more: it has committed.
            Content::Commit(commit) => self.coordinator.decided(entry, commit, &mut desk),
            Content::Prepare(prepare) if speaks => match &prepare.among {
                Some(among) => self.coordinator.promised(entry, prepare, among, &mut desk),
                None => self.cohort.promised(prepare.attempt, &mut desk),
            },
            Content::Outcome(part, commit) if part.home().partition == desk.site.partition => {
                if speaks {
                    return self.coordinator.concluded(*part, entry.place, &mut desk);
                }
                // Its client is answered also by a node that leads no more.
                let place = commit.as_ref().map(|_| entry.place);
                let returned = self.coordinator.concluded_elsewhere(*part, place, &mut desk);
                self.give_back(returned, now, out);
            }
            Content::Outcome(who, _) if speaks => {
                self.cohort.concluded(*who, &mut desk);
                self.cohort.go_on_in_order(&mut desk);
            }
            Content::Deny(who) if speaks => self.coordinator.deny(*who, &mut desk),
            Content::Forget(attempts) => self.coordinator.forgotten(attempts, entry.place, &mut desk),
            Content::Announce(_) if speaks => {
                self.hearing.ended();
                self.cohort.go_on_in_order(&mut desk);
            }
            Content::Reserve(_) if speaks => {
                self.reservation.ended(&mut desk);
                self.coordinator.go_on_stamped(&mut desk);
            }
            _ => {}
        }
    }

    /// An entry is not in the log and never will be.
    fn unwritten(&mut self, entry: &Entry, now: Now, out: &mut Outbox<Message>) {
        let mut desk = desk!(self, now, out);
        match &entry.content {
            Content::Commit(commit) => self.coordinator.rejected(commit, &mut desk),
            Content::Prepare(prepare) => match &prepare.among {
                Some(among) => self.coordinator.unpromised(prepare, among, &mut desk),
                None => self.cohort.unpromised(prepare, &mut desk),
            },
            Content::Outcome(part, _) if part.home().partition == desk.site.partition => {
                self.coordinator.unconcluded(*part);
            }
            Content::Outcome(who, _) => self.cohort.unwritten(*who),
            Content::Forget(attempts) if self.site.regions.is_some() => {
                self.coordinator.unforgotten(attempts, now.elapsed);
            }
            content @ (Content::Deny(_) | Content::Forget(_)) => {
                self.coordinator.unwritten(content, now.elapsed);
            }
            Content::Reserve(_) => self.reservation.ended(&mut desk),
            Content::Meet(_) => self.founding.iter_mut().for_each(Founding::unwritten),
            Content::Announce(said) => self.hearing.unwritten(said),
            Content::Begin => _ = self.begins.take_if(|beginning| beginning.lead.term == entry.term),
            Content::Mark => {}
        }
    }

    // ---- messages ------------------------------------------------------------------------------------------

    fn take_termed(&mut self, message: Termed, now: Now, out: &mut Outbox<Message>) {
        let Termed { from, to, content } = message;
        if self.lead != Some(to) || !self.leaders.holds(from) {
            self.dropped += 1;
            return;
        }
        self.known.tell(self.site.partition, from, &content, self.topology.layout.partitions());
        let mut desk = desk!(self, now, out);
        match content {
            Protocol::Accessed(accessed) => self.coordinator.accessed(from, accessed, &mut desk),
            Protocol::Settled(settled) => self.coordinator.settled(settled, &mut desk),
            Protocol::Prepare(request) => self.cohort.prepare(request, &mut desk),
            Protocol::Vote(who, may, view) => self.coordinator.voted(from, who, (may, &view), &mut desk),
            Protocol::Decide(who, commit) => self.cohort.decide(from.partition, who, commit, &mut desk),
            Protocol::Ack(who) => self.coordinator.acknowledged(from.partition, who, now.elapsed),
            Protocol::Ask(who) => self.coordinator.asked(from.partition, who, &mut desk),
            Protocol::Confirm(request) => self.cohort.confirm(request, &mut desk),
            Protocol::Confirmed(who, _) if who.attempt == 0 => self.coordinator.proved(from, who, &mut desk),
            Protocol::Confirmed(who, may) => self.coordinator.confirmed(from, who, may, &mut desk),
            Protocol::Computing(who) => self.coordinator.computing(from, who),
            Protocol::Stamps(request) => {
                if let Some(who) = self.coordinator.count(from, request, &desk) {
                    let question = ConfirmRequest {
                        attempt: who,
                        bounds: Bounds::at(Age(0)),
                        shards: Vec::new(),
                        snapshot: Snapshot::default(),
                    };
                    self.cohort.confirm(question, &mut desk);
                }
            }
            Protocol::Stamped(stamped) => self.coordinator.stamped(stamped, &mut desk),
            Protocol::Announce(number, decided, readers) if readers.is_sound() => {
                self.cohort.told(from.partition, decided, &mut desk);
                self.hearing.hear(Announced { home: from, number, readers });
            }
            Protocol::Announce(..) => self.strangers += 1,
            Protocol::Part(request) => self.coordinator.take_part(from, *request, &mut desk),
            Protocol::Reserve(reservation) => self.coordinator.take_reservation(from, reservation, &desk),
            Protocol::Release(of) if of.home == from => self.coordinator.release(of, &desk),
            Protocol::Release(_) => self.strangers += 1,
            Protocol::Ballot(ballot) => self.coordinator.take_ballot(from, ballot, &mut desk),
            content => out.halt(format!("a manager was sent a message that is not for it: {content:?}")),
        }
    }

    fn take_front(&mut self, from: Address, front: Front, now: Now, out: &mut Outbox<Message>) {
        match front {
            Front::Submit(chunk) | Front::Read(chunk, _) => {
                self.tokens.take(&chunk, &mut desk!(self, now, out));
                let own = self.relay.take(chunk, &mut desk!(self, now, out));
                self.take_own_part(own, now, out);
            }
            Front::Step(step, chunk) => {
                let own = self.relay.take_step(step, chunk, &mut desk!(self, now, out));
                self.take_own_part(own, now, out);
            }
            Front::Abandon(of) => {
                let claim = self.relay.abandon(of, &mut desk!(self, now, out));
                match claim {
                    Some((node, lead)) if node == self.site.node => self.abandon(lead, of, now, out),
                    Some((node, lead)) => {
                        let manager = Address { node, role: self.site.manager };
                        out.send(manager, RelayMessage::Abandon(lead, of));
                    }
                    None => {}
                }
            }
            Front::Pause(pause) => out.send(from, Front::Continue(pause)),
            // Reads keep nothing.
            Front::ReadDone(..) => {}
            front => out.halt(format!("a manager was sent a message that is not for it: {front:?}")),
        }
    }

    /// An open transaction is over for its client.
    fn abandon(&mut self, to: Lead, of: OpenId, now: Now, out: &mut Outbox<Message>) {
        if self.lead == Some(to) {
            self.coordinator.abandon(of, &mut desk!(self, now, out));
        }
    }

    fn take_relay(&mut self, from: Address, message: RelayMessage, now: Now, out: &mut Outbox<Message>) {
        match message {
            RelayMessage::Submit(to, chunk) if self.lead == Some(to) => {
                let places = 0..chunk.txns().len();
                self.coordinator.take(&chunk, places, &mut desk!(self, now, out));
            }
            RelayMessage::Step(to, step, chunk) if self.lead == Some(to) => {
                self.coordinator.take_step(step, &chunk, &mut desk!(self, now, out));
            }
            RelayMessage::Abandon(to, of) => self.abandon(to, of, now, out),
            RelayMessage::Submit(asked, chunk) | RelayMessage::Step(asked, _, chunk) => {
                let indexes = chunk.txns().iter().map(|txn| txn.index).collect();
                let (gateway, chunk) = (chunk.gateway, chunk.number);
                out.send(from, RelayMessage::Return(Returned { asked, gateway, chunk, indexes }));
            }
            RelayMessage::Outcomes(batch, view) => {
                self.see(&view);
                self.coordinator.told(&batch, self.site.stamps);
                self.answer(from.node, batch, now, out);
            }
            RelayMessage::Heard(stamp, view) => {
                self.coordinator.hear(stamp);
                self.see(&view);
            }
            RelayMessage::Told(stamp) => {
                self.coordinator.hear(stamp);
                self.hearsay.hear(stamp);
            }
            RelayMessage::Return(returned) => {
                self.relay.give_back(from.node, &returned, &mut desk!(self, now, out));
                self.leaders.retract(returned.asked, from.node);
                self.retry_relay(now, out);
            }
            RelayMessage::Attest(question) => {
                let is_reading = |who| self.coordinator.is_reading(who);
                let answer = attest(&question, is_reading, &desk!(self, now, out));
                answer.into_iter().for_each(|answer| out.send(from, RelayMessage::Attested(answer)));
            }
            RelayMessage::Attested(answer) if self.topology.partition_of(from.node) == answer.home => {
                self.tokens.attested(&answer, &mut desk!(self, now, out));
            }
            RelayMessage::Attested(_) => self.strangers += 1,
        }
    }

    /// Clients of this node see this from now on. It comes from another node, which cannot know of decisions that a leader's own log has not:
    /// those would have every transaction of this home refused.
    fn see(&mut self, view: &View) {
        let own = view.seen().vector.of(self.site.partition);
        let is_known = self.lead.is_none() || own <= self.appender.last().0;
        if !is_known {
            self.strangers += 1;
        } else if view.fits(self.topology.layout.partitions()) {
            self.known.see(view, self.agreed.living());
        }
    }

    fn answer(&mut self, from: NodeId, batch: OutcomeBatch, now: Now, out: &mut Outbox<Message>) {
        self.relay.answer(Some(from), batch, &mut desk!(self, now, out));
    }

    fn take_peer(&mut self, change: PeerChange, now: Now, out: &mut Outbox<Message>) {
        let PeerChange { node, state } = change;
        if !self.topology.is_server(node) {
            return;
        }
        match state {
            PeerState::Fresh => self.leaders.come_back(node),
            PeerState::Lost => return self.leaders.leave(node, now.elapsed),
            PeerState::Back => {
                self.leaders.come_back(node);
                return self.retry_relay(now, out);
            }
        }
        let led = self.leaders.forget(node);
        self.tell_meeting(node, out);
        self.cuts.tell(node, &mut desk!(self, now, out));
        if let Some(lead) = self.lead {
            out.send(Address { node, role: self.site.manager }, Message::Leads(lead));
        }
        let mut desk = desk!(self, now, out);
        self.relay.lose(node, &mut desk);
        self.coordinator.lose_doors(node, &mut desk);
        for lead in led {
            self.coordinator.disturbed(lead.partition, &mut desk);
            self.cohort.disturbed(lead.partition, &mut desk);
        }
        self.retry_relay(now, out);
    }

    fn take_own(&mut self, message: Own, now: Now, out: &mut Outbox<Message>) {
        match message {
            Own::Gathered(who, gathered) => self.cohort.gathered(who, gathered, &mut desk!(self, now, out)),
            Own::Validated(who, shard, may, view, holds) => {
                let mut desk = desk!(self, now, out);
                if !self.coordinator.validated(who, usize::from(shard), (may, &view, holds), &mut desk) {
                    self.cohort.validated(who, shard, may, &mut desk);
                }
            }
            Own::Locked(who, shard, is_locked) => {
                let mut desk = desk!(self, now, out);
                self.coordinator.locked_at(who, (usize::from(shard), is_locked), &mut desk);
            }
            Own::Ready(term) => self.ready(term, now, out),
            Own::Viewed(lead) if self.views.note(lead) => {
                self.coordinator.disturbed(lead.partition, &mut desk!(self, now, out));
            }
            Own::Viewed(_) => {}
            Own::Replaced(region) => self.coordinator.disturbed(region, &mut desk!(self, now, out)),
            Own::Waits(_) | Own::Over(..) | Own::Spared(..) => self.take_waits(message, out),
            Own::Reserve(time) if self.lead.is_some() => {
                self.reservation.want(time, &mut desk!(self, now, out));
            }
            Own::Expired(names) if self.lead.is_some() => {
                self.coordinator.remove_expired(&names, &mut desk!(self, now, out));
            }
            // The term in which it was asked is over.
            Own::Reserve(_) | Own::Expired(_) => {}
            message => out.halt(format!("a manager was sent a message that is not for it: {message:?}")),
        }
    }

    fn pass_time(&mut self, now: Now, out: &mut Outbox<Message>) {
        for node in self.leaders.give_up(now.elapsed, AWAY_FOR) {
            self.relay.lose(node, &mut desk!(self, now, out));
        }
        let mut desk = desk!(self, now, out);
        self.coordinator.pass(&mut desk);
        self.cohort.pass(&mut desk);
        self.cohort.go_on(&mut desk);
        self.relay.expire(&mut desk);
        self.hearsay.pass(&mut desk);
        self.tokens.pass(&mut desk);
        self.retry_relay(now, out);
    }

    fn set_timer(&self, now: Now, out: &mut Outbox<Message>) {
        let looks = self.relay.waits() || self.leaders.misses();
        let looks = looks.then(|| now.elapsed.plus(LOOK_EVERY));
        let cuts = self.cuts.due(self.lead.is_some() && !self.appender.is_full());
        let due =
            [self.coordinator.due(), self.cohort.due(), self.hearsay.due(), self.tokens.due(), cuts, looks];
        let due = due.into_iter().flatten().min();
        match due {
            Some(due) => out.set_timer(TIMER, due.since(now.elapsed).max(Micros(1))),
            None => out.cancel_timer(TIMER),
        }
    }
}

impl Role for Manager {
    type Message = Message;

    fn handle(&mut self, now: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        self.clock = self.clock.max(now.wall.to_millis());
        match event {
            Event::Start if !self.has_members => self.start(now, out),
            Event::Timer(TIMER) => self.pass_time(now, out),
            Event::Timer(GIVE) => self.giver.rested(),
            Event::Message { from, message } => match message {
                Message::Front(front) => self.take_front(from, front, now, out),
                Message::Termed(message) => self.take_termed(message, now, out),
                Message::Leads(lead) => self.take_claim(lead, from.node, now, out),
                Message::Relay(message) => self.take_relay(from, message, now, out),
                Message::Own(message) => self.take_own(message, now, out),
                Message::Log(message) => self.take_log(message, now, out),
                Message::Peer(change) => self.take_peer(change, now, out),
                Message::Meet(met) => self.take_meeting(from.node, met, now, out),
                Message::Cut(message) if message.is_sound() => {
                    self.cuts.take(from, message, &mut desk!(self, now, out));
                }
                Message::Saving(message) if from.node == self.site.node => self.take_saving(&message, out),
                Message::Cut(_) | Message::Saving(_) => self.strangers += 1,
                message @ (Message::Group(_) | Message::Storage(_)) => {
                    out.halt(format!("a manager was sent a message that is not for it: {message:?}"));
                }
            },
            _ => {}
        }
        self.save(now, out);
        let wanted = self.coordinator.take_wanted().max(self.cohort.take_wanted());
        let wanted = wanted.filter(|_| self.lead.is_some());
        let mut desk = desk!(self, now, out);
        if let Some(time) = wanted {
            self.reservation.want(time, &mut desk);
        }
        for (who, begins) in self.coordinator.take_regional() {
            match begins {
                true if self.waits.become_multi(who) => self.coordinator.refuse_regional(who, &mut desk),
                true => {}
                false => self.waits.end_multi(who),
            }
        }
        self.coordinator.ask_for_stamps(&mut desk);
        self.coordinator.take_own_word().into_iter().for_each(|said| self.hearing.hear(said));
        self.hearing.append(&mut desk);
        desk.send_accesses();
        for batch in self.coordinator.take_outcomes(&mut desk) {
            self.answer(self.site.node, batch, now, out);
        }
        self.clock = self.clock.max(self.coordinator.latest());
        let desk = desk!(self, now, out);
        self.hearsay.note(&desk);
        self.coordinator.note_decided(&desk);

        self.set_timer(now, out);
    }

    fn name(&self) -> &'static str {
        "manager"
    }

    fn check(&self) -> Result<(), String> {
        self.coordinator.check()?;
        let counts = &self.coordinator.counts;
        counts.failed.check(&figures::FAILED)?;
        counts.aborted.check(&figures::ABORTED)?;
        self.cohort.check()?;
        self.waits.check()?;
        self.tokens.check()?;
        self.relay.check()
    }

    fn check_at_rest(&self) -> Result<(), String> {
        if !self.waits.is_empty() {
            return Err(format!("{} attempts that are over are in the graph of waits", self.waits.len()));
        }
        match [&self.known.seen().anti, &self.agreed.followed().anti]
            .into_iter()
            .find(|anti| !anti.is_empty())
        {
            Some(anti) => Err(format!("readers that are over are named: {anti:?}")),
            None => Ok(()),
        }
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        match &self.founding {
            Some(founding) => report("ordain_manager_unfounded", founding.missing() as f64),
            None => report(TAKES_TRANSACTIONS, 1.0),
        }
        self.coordinator.report(self.site.partition, report);
        report("ordain_manager_untold", (self.coordinator.untold() + self.hearing.unwritten_words()) as f64);
        self.doubts.set(self.coordinator.doubts(&self.agreed, self.site.partition));
        report("ordain_cohort_under_way", self.cohort.under_way() as f64);
        report("ordain_cohort_prepared", self.agreed.prepared().count() as f64);
        report("ordain_coordinator_interactive", self.coordinator.interactive() as f64);
        report("ordain_relay_interactive", self.relay.interactive() as f64);
        report("ordain_manager_cut", self.agreed.cut().0 as f64);
        report("ordain_manager_sessions", self.agreed.outcomes().len() as f64);
        report("ordain_relay_open", self.relay.open() as f64);
        report("ordain_manager_place", self.agreed.place().0 as f64);
        report("ordain_manager_messages_total", self.traffic.messages as f64);
        report("ordain_manager_records_total", self.traffic.records as f64);
        report("ordain_manager_strangers_total", self.strangers as f64);
        report("ordain_manager_dropped_total", self.dropped as f64);
        report("ordain_manager_void_total", self.agreed.void() as f64);
        self.report_waits(report);
    }
}
