//! Leaders that lose their power while they live: they go on, clients reach them, and they may get it back.
//!
//! One group at a time. Its leader is cut off from the other members alone, or stands still in the middle of a step, until
//! another member leads. That takes an election, which other outages are mostly too short for. Then it goes on like that
//! for a while longer. With [`Deposal::Regain`] the former leader catches up, and whoever else leads is cut off, until the
//! former one leads again in the same life.

use ordain_model::Micros;
use ordain_role::{Event, NodeId, Outbox};

use crate::network::Cuts;
use crate::queue::Happening;
use crate::simulator::Simulator;
use crate::system::System;

/// A way in which a leader loses its power, in the order of [`Fault::OF_LEADERS`](crate::Fault).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deposal {
    /// The leader is cut off from the other members.
    Depose,
    /// The same, and it leads again later.
    Regain,
    /// The leader stands still between what it handles and what it sends.
    Hold,
}

impl Deposal {
    pub(crate) const ALL: [Deposal; 3] = [Deposal::Depose, Deposal::Regain, Deposal::Hold];
}

/// The leader that is losing its power, or has lost it.
#[derive(Debug)]
pub(crate) struct Deposed {
    how: Deposal,
    group: Vec<usize>,
    leader: usize,
    life: u32,
    /// The latest term in which it led.
    term: u64,
    stage: Stage,
    /// The time at which this ends, whatever has come of it.
    until: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The leader will stand still once it has handled a message of a kind.
    Armed(&'static str),
    /// No other member leads yet.
    Waits,
    /// Another member leads, or the former leader again. It stays so until then, and then the former leader may return.
    Lasts { until: Micros, returns: bool },
    /// The former leader is heard again, and is given what it has missed.
    CatchesUp,
    /// This member is cut off, so that the former leader is elected.
    Returns(usize),
}

/// A step of a role, of which the node has not yet done what it asks for.
#[derive(Debug)]
pub(crate) struct HeldStep<M> {
    pub(crate) role: u16,
    pub(crate) out: Outbox<M>,
    pub(crate) is_news: bool,
}

/// The longest time for all of it, microseconds: a group without a majority elects nobody.
const BOUND_US: u64 = 3_000_000;
/// The time between two looks at who leads, microseconds.
const LOOK_US: u64 = 4_000;

impl<S: System> Simulator<'_, S> {
    /// The member of a group that says it leads in the latest term, and that term.
    fn leader_of(&self, group: &[usize]) -> Option<(usize, u64)> {
        let gauge = |of: NodeId, name: &str| self.gauge(of, name);
        let terms = group
            .iter()
            .filter_map(|node| self.system.leads(NodeId(*node as u16), &gauge).map(|term| (*node, term)));
        terms.max_by_key(|(_, term)| *term)
    }

    /// True if the former leader has all of its group's log that another member has.
    fn has_caught_up(&self, of: usize, with: usize) -> bool {
        let gauge = |of: NodeId, name: &str| self.gauge(of, name);
        let last = |node: usize| self.system.log_reaches(NodeId(node as u16), &gauge);
        last(of) >= last(with)
    }

    /// True while a leader is losing its power, or is without it.
    pub(crate) fn is_deposing(&self) -> bool {
        self.deposed.is_some()
    }

    /// The leader of some group begins to lose its power. False if there is none, or another one does already.
    pub(crate) fn depose(&mut self, how: Deposal) -> bool {
        let groups = self.system.groups();
        if self.deposed.is_some() || groups.is_empty() {
            return false;
        }
        let group = &groups[self.random.index(groups.len())];
        let group: Vec<usize> = group.iter().map(|node| usize::from(node.0)).collect();
        let Some((leader, term)) =
            self.leader_of(&group).filter(|(leader, _)| !self.nodes[*leader].is_frozen)
        else {
            return false;
        };
        let stage = match (how, self.system.pivots()) {
            (Deposal::Hold, []) => return false,
            (Deposal::Hold, kinds) => Stage::Armed(kinds[self.random.index(kinds.len())]),
            (Deposal::Depose | Deposal::Regain, _) => {
                self.severed = Cuts::of_member(leader, &group);
                Stage::Waits
            }
        };
        self.trace.note(
            self.now,
            format_args!("{how:?}: node {leader} leads {group:?} in term {term}, severed{}", self.severed),
        );
        self.counts.faults += 1;
        let (life, until) = (self.nodes[leader].incarnation, self.now.plus(Micros(BOUND_US)));
        self.deposed = Some(Deposed { how, group, leader, life, term, stage, until });
        self.after(LOOK_US, Happening::LookAtLeaders);
        true
    }

    /// Looks who leads, and goes on to the next stage if that has come.
    pub(crate) fn look_at_leaders(&mut self) {
        let Some(mut deposed) = self.deposed.take() else { return };
        let goes_on = self.now < deposed.until
            && self.lives(deposed.leader, deposed.life)
            && self.next_stage(&mut deposed);
        let how = deposed.how;
        self.deposed = Some(deposed);
        if goes_on {
            return self.after(LOOK_US, Happening::LookAtLeaders);
        }
        self.end_deposal();
        self.after_about(self.intensity.depose_every_us[how as usize], Happening::Depose(how));
    }

    /// Goes on to the next stage if that has come. False if nothing more comes.
    fn next_stage(&mut self, deposed: &mut Deposed) -> bool {
        let leads = self.leader_of(&deposed.group);
        let other = leads.filter(|(node, term)| *node != deposed.leader && *term > deposed.term);
        let returned = leads.filter(|(node, term)| *node == deposed.leader && *term > deposed.term);
        match (deposed.stage, other, returned) {
            (Stage::Armed(_), Some(_), _) => return false,
            (Stage::Waits, Some((node, term)), _) => {
                self.trace.note(self.now, format_args!("node {node} leads in term {term}"));
                self.counts.deposed += 1;
                deposed.term = term;
                deposed.stage = Stage::Lasts { until: self.lasts(), returns: deposed.how == Deposal::Regain };
            }
            (Stage::Lasts { until, returns: false }, ..) if self.now >= until => return false,
            (Stage::Lasts { until, returns: true }, ..) if self.now >= until => {
                self.trace.note(self.now, format_args!("node {} is heard again", deposed.leader));
                self.severed.mend();
                deposed.stage = Stage::CatchesUp;
            }
            (Stage::CatchesUp, ..) => {
                let Some((node, _)) = leads.filter(|(node, _)| *node != deposed.leader) else { return true };
                if self.has_caught_up(deposed.leader, node) {
                    self.sever(node, &deposed.group);
                    deposed.stage = Stage::Returns(node);
                }
            }
            (Stage::Returns(_), _, Some((node, term))) => {
                self.trace.note(self.now, format_args!("node {node} leads again, in term {term}"));
                self.counts.regained += 1;
                // It is the other one that is deposed and reachable now.
                deposed.stage = Stage::Lasts { until: self.lasts(), returns: false };
            }
            (Stage::Returns(cut), Some((node, _)), _) if node != cut => {
                self.sever(node, &deposed.group);
                deposed.stage = Stage::Returns(node);
            }
            _ => {}
        }
        true
    }

    /// Draws until when a deposed leader stays as it is.
    fn lasts(&mut self) -> Micros {
        let lasts = self.outage(self.intensity.depose_us_max);
        self.now.plus(Micros(lasts))
    }

    /// Cuts a member off from the others of its group, and no other one.
    fn sever(&mut self, node: usize, group: &[usize]) {
        self.severed = Cuts::of_member(node, group);
        self.trace.note(self.now, format_args!("severed{}", self.severed));
    }

    /// All members of the group hear of each other, and a leader that was held goes on.
    pub(crate) fn end_deposal(&mut self) {
        let Some(deposed) = self.deposed.take() else { return };
        self.trace.note(self.now, format_args!("node {} and its group are left alone", deposed.leader));
        self.severed.mend();
        if self.nodes[deposed.leader].held_step.is_some() {
            self.thaw(deposed.leader);
        }
    }

    /// True if a node is to stand still when a role of it has handled the next event.
    pub(crate) fn holds_after(&self, node: usize, role: u16) -> bool {
        let Some(Deposed { leader, life, stage: Stage::Armed(kind), .. }) = &self.deposed else {
            return false;
        };
        if *leader != node || *life != self.nodes[node].incarnation {
            return false;
        }
        let next = self.nodes[node].roles.get(&role).and_then(|slot| slot.mailbox.front());
        matches!(next, Some(Event::Message { message, .. }) if self.system.pivot(message) == Some(*kind))
    }

    /// A node stands still between the step of a role and what that asks for.
    pub(crate) fn hold(&mut self, number: usize, step: HeldStep<S::Message>) {
        self.trace
            .note(self.now, format_args!("node {number} stands still in the step of role {}", step.role));
        self.counts.held += 1;
        self.counts.freezes += 1;
        self.nodes[number].is_frozen = true;
        self.nodes[number].held_step = Some(step);
        if let Some(deposed) = &mut self.deposed {
            deposed.stage = Stage::Waits;
        }
    }
}
