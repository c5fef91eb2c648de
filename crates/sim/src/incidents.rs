//! Incidents: faults of the cluster, one after the other, at the pace of the [`Load`](crate::Load).
//!
//! In a storm every fault has a pace of its own on every node (`outages`), so a larger cluster has more of them, and all
//! kinds at once. Incidents come at one pace for the whole cluster, whatever its size, and each is of one kind: what happens to
//! single messages and disk operations, too, happens for a while and then no more.

use ordain_model::{OutcomeBatch, OutcomeStatus, Random};
use ordain_role::NodeId;

use crate::deposals::Deposal;
use crate::faults::{Fault, Faults, Intensity};
use crate::load::FaultPace;
use crate::network::Cuts;
use crate::queue::Happening;
use crate::run::Config;
use crate::simulator::Simulator;
use crate::system::System;

/// A kind of incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incident {
    /// A node loses power, now or at one of its next disk operations.
    Crash,
    /// The network is cut for a while.
    Cut,
    /// A connection breaks.
    Break,
    /// A node stands still for a while.
    Freeze,
    /// A disk is full for a while.
    Fill,
    /// The next sync of a node fails.
    FailSync,
    /// A wall clock jumps.
    Jump,
    /// A node loses its disk.
    Lose,
    /// A leader loses its power while it lives.
    Depose(Deposal),
    /// Something happens to single messages, disk operations or clients for a while.
    Spell(Spell),
}

/// The faults that only some systems can bear.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bears {
    /// A node may lose its disk.
    pub(crate) loss: bool,
    /// Some nodes have a leader.
    pub(crate) deposals: bool,
}

impl Bears {
    fn has(self, fault: Fault) -> bool {
        match fault {
            Fault::Loss => self.loss,
            fault => self.deposals || !Fault::OF_LEADERS.contains(&fault),
        }
    }
}

/// What happens to single messages, disk operations or clients for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spell {
    /// Packets are lost.
    Drop,
    /// Messages and roles are held up.
    Stall,
    /// Packets overtake others.
    Reorder,
    /// Packets arrive twice.
    Duplicate,
    /// Clients of sessions do not wait for their answers.
    Impatience,
    /// Disk operations take long.
    SlowDisk,
}

impl Spell {
    /// Its chance among the faults of a seed.
    fn chance(self, of: &mut Intensity) -> &mut u32 {
        match self {
            Spell::Drop => &mut of.drop_chance,
            Spell::Stall => &mut of.stall_chance,
            Spell::Reorder => &mut of.reorder_chance,
            Spell::Duplicate => &mut of.duplicate_chance,
            Spell::Impatience => &mut of.impatience_chance,
            Spell::SlowDisk => &mut of.slow_disk_chance,
        }
    }
}

/// The incidents of a fault, on so many nodes.
fn incidents_of(fault: Fault, nodes: u16) -> &'static [Incident] {
    use Incident as I;
    match fault {
        Fault::Crash => &[I::Crash],
        // Half of them are cuts, of which there are most kinds.
        Fault::Partition if nodes > 1 => &[I::Cut, I::Cut, I::Break, I::Spell(Spell::Drop)],
        Fault::Delay => &[I::Freeze, I::Spell(Spell::Stall)],
        Fault::Reorder if nodes > 1 => &[I::Spell(Spell::Reorder)],
        Fault::Duplicate if nodes > 1 => &[I::Spell(Spell::Duplicate), I::Spell(Spell::Impatience)],
        Fault::Duplicate => &[I::Spell(Spell::Impatience)],
        Fault::Disk => &[I::Fill, I::FailSync, I::Spell(Spell::SlowDisk)],
        Fault::Clock => &[I::Jump],
        Fault::Loss if nodes > 1 => &[I::Lose],
        Fault::Depose => &[I::Depose(Deposal::Depose)],
        Fault::Regain => &[I::Depose(Deposal::Regain)],
        Fault::Hold => &[I::Depose(Deposal::Hold)],
        Fault::Partition | Fault::Reorder | Fault::Loss => &[],
    }
}

/// The incidents that a seed may use, and when the next one is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Incidents {
    /// The kinds, by the fault that they belong to: a fault is drawn first.
    kinds: Vec<&'static [Incident]>,
    /// The chances of spells while they last.
    spells: Intensity,
    /// The number of requests after which the only incident of a run comes.
    after_requests: Option<u64>,
}

impl Incidents {
    /// Draws the kinds that a seed uses on so many nodes: most of those that were asked for, or any one of them.
    pub(crate) fn draw(
        (faults, pace): (Faults, FaultPace),
        nodes: u16,
        bears: Bears,
        spells: &Intensity,
        random: &mut Random,
    ) -> Incidents {
        if pace == FaultPace::Own {
            return Incidents::default();
        }
        let mut possible = Vec::new();
        for (fault, _) in Fault::ALL {
            let kinds = incidents_of(fault, nodes);
            if faults.has(fault) && !kinds.is_empty() && bears.has(fault) {
                possible.push(kinds);
            }
        }
        // One that lasts for an election makes a run long.
        let is_used = |kinds: &&[Incident], random: &mut Random| {
            random.chance(if matches!(kinds, [Incident::Depose(_)]) { 250_000 } else { 750_000 })
        };
        let used: Vec<_> = possible.iter().copied().filter(|kinds| is_used(kinds, random)).collect();
        let kinds = if used.is_empty() || pace == FaultPace::Once { possible } else { used };
        Incidents { kinds, spells: spells.clone(), after_requests: None }
    }

    /// The only incident comes after so many requests.
    pub(crate) fn set_after(&mut self, requests: u64) {
        self.after_requests = Some(requests);
    }

    /// True if the only incident comes after so many requests, the first time.
    pub(crate) fn is_due(&mut self, requests: u64) -> bool {
        let is_due = self.after_requests.is_some_and(|after| requests >= after);
        self.after_requests = self.after_requests.filter(|_| !is_due);
        is_due
    }

    /// True if there is anything that may happen.
    fn has_kinds(&self) -> bool {
        !self.kinds.is_empty()
    }

    fn next(&self, random: &mut Random) -> Option<Incident> {
        if self.kinds.is_empty() {
            return None;
        }
        let kinds = self.kinds[random.index(self.kinds.len())];
        Some(kinds[random.index(kinds.len())])
    }
}

impl<S: System> Simulator<'_, S> {
    /// Notes that requests were answered, and how far the order has come under load.
    pub(crate) fn note_load(&mut self, batch: &OutcomeBatch) {
        let ended = |status| matches!(status, OutcomeStatus::Committed | OutcomeStatus::Aborted(_));
        let stamps =
            batch.outcomes.iter().filter(|outcome| ended(outcome.status)).map(|outcome| outcome.stamp);
        let Some(last) = stamps.max().filter(|_| !self.healed) else { return };
        self.last_under_load = self.last_under_load.max(last);
        let at = self.last_at.entry(NodeId(batch.gateway.node())).or_insert(last);
        *at = last.max(*at);
        if self.works_since.is_none() {
            self.begin_incidents();
        }
        self.note_asked();
    }

    /// Notes that requests were asked: the only incident of a run may be due. It is noted with every request and with the first
    /// answer, before which no incident is set: all may have been asked by then.
    pub(crate) fn note_asked(&mut self) {
        if self.incidents.is_due(self.asked()) {
            let load = self.config.load;
            let delay = self.random.tail(load.think_us_max.max(load.rest_us));
            self.after(delay, Happening::Incident);
        }
    }

    /// Begins incidents with the first answer, so that they meet a cluster that works. Faults in a cluster that starts are for a storm.
    fn begin_incidents(&mut self) {
        self.works_since = Some(self.now);
        let Config { load, txns, virtual_time, .. } = &self.config;
        match (load.faults, virtual_time) {
            (FaultPace::Own, _) => {}
            (FaultPace::Every { mean_us }, _) => self.after_about(mean_us, Happening::Incident),
            // In the first three quarters, so that much comes after it.
            (FaultPace::Once, Some(time)) => {
                let delay = self.random.below(time.0 / 4 * 3 + 1);
                self.after(delay, Happening::Incident);
            }
            (FaultPace::Once, None) => self.incidents.set_after(self.random.below(txns / 4 * 3 + 1)),
        }
    }

    /// True while the only fault of a run has yet to happen.
    pub(crate) fn awaits_fault(&self) -> bool {
        self.config.load.faults == FaultPace::Once && self.counts.faults == 0 && self.incidents.has_kinds()
    }

    /// Draws the next incident and lets it happen as soon as it can.
    pub(crate) fn incident(&mut self) {
        if let Some(incident) = self.incidents.next(&mut self.random) {
            self.try_incident(incident);
        }
    }

    /// An incident happens, if the cluster is such that it can; else it is tried again.
    pub(crate) fn try_incident(&mut self, incident: Incident) {
        let leader = self.draw_leader();
        let node = leader.unwrap_or_else(|| self.random.index(self.nodes.len()));
        let happens = match (incident, leader) {
            (Incident::Cut, Some(off)) if self.cuts.is_whole() => {
                let cuts = Cuts::draw_off(self.nodes.len(), off, &mut self.random);
                self.cut(cuts);
                true
            }
            _ => self.happens(incident, node),
        };
        if !happens {
            let delay = 1 + self.random.tail(2_000);
            return self.after(delay, Happening::TryIncident(incident));
        }
        if let FaultPace::Every { mean_us } = self.config.load.faults {
            // What lasts for an election is not to be buried by all that happens meanwhile.
            let mean_us = if self.is_deposing() { 8 * mean_us } else { mean_us };
            self.after_about(mean_us, Happening::Incident);
        }
    }

    /// Draws a node that leads a partition, if the next incident is to hit one and there is one.
    fn draw_leader(&mut self) -> Option<usize> {
        let chance = self.config.load.leader_chance;
        if chance == 0 || !self.random.chance(chance) {
            return None;
        }
        let gauge = |of: NodeId, name: &str| self.gauge(of, name);
        let leads = |node: &usize| self.system.leads(NodeId(*node as u16), &gauge).is_some();
        let leaders: Vec<usize> = (0..self.nodes.len()).filter(leads).collect();
        if leaders.is_empty() {
            return None;
        }
        let leader = leaders[self.random.index(leaders.len())];
        self.trace.note(self.now, format_args!("node {leader} leads, and is to be hit"));
        Some(leader)
    }

    /// Lets an incident happen to a node. False if it cannot.
    fn happens(&mut self, incident: Incident, node: usize) -> bool {
        let is_up = self.nodes[node].up;
        let life = self.nodes[node].incarnation;
        match incident {
            Incident::Crash if is_up => self.happen(Happening::CrashDue { node, life }),
            Incident::Cut if self.cuts.is_whole() => self.happen(Happening::Cut),
            Incident::Break => self.happen(Happening::Break),
            Incident::Freeze if is_up && !self.nodes[node].is_frozen => {
                self.happen(Happening::Freeze { node });
            }
            Incident::Fill if !self.nodes[node].is_full => self.happen(Happening::Fill { node }),
            Incident::FailSync if is_up => {
                self.trace.note(self.now, format_args!("node {node}: the next sync fails"));
                self.counts.faults += 1;
                self.nodes[node].fails_sync = true;
            }
            Incident::Jump => self.happen(Happening::Jump { node }),
            Incident::Lose => return self.lose_disk(node),
            Incident::Depose(how) => return self.depose(how),
            Incident::Spell(spell) => {
                self.counts.faults += 1;
                let chance = *spell.chance(&mut self.incidents.spells);
                self.trace.note(self.now, format_args!("{spell:?} begins"));
                *spell.chance(&mut self.intensity) = chance;
                let lasts = 1 + self.random.tail(self.intensity.spell_us_max);
                self.after(lasts, Happening::SpellEnds(spell));
            }
            _ => return false,
        }
        true
    }

    /// Messages, disk operations or clients are as they should be again.
    pub(crate) fn end_spell(&mut self, spell: Spell) {
        self.trace.note(self.now, format_args!("{spell:?} ends"));
        *spell.chance(&mut self.intensity) = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_was_not_asked_for_or_cannot_be_has_no_incident() {
        let drawn = |faults: &str, nodes, bears| {
            let faults = faults.parse().unwrap();
            let mut kinds = Vec::new();
            for seed in 0..100 {
                let mut random = Random::new(seed);
                let pace = FaultPace::Every { mean_us: 1 };
                let spells = Intensity::default();
                let bears = Bears { loss: bears, deposals: bears };
                let incidents = Incidents::draw((faults, pace), nodes, bears, &spells, &mut random);
                kinds.extend((0..20).filter_map(|_| incidents.next(&mut random)));
            }
            kinds
        };
        assert!(drawn("none", 3, true).is_empty());
        assert!(drawn("crash", 3, true).iter().all(|kind| *kind == Incident::Crash));
        assert!(drawn("partition,reorder", 1, false).is_empty());
        assert!(drawn("loss", 3, false).is_empty());
        assert!(drawn("depose,regain,hold", 3, false).is_empty());
        assert!(drawn("crash,depose", 3, true).contains(&Incident::Depose(Deposal::Depose)));
        assert!(drawn("all", 3, true).contains(&Incident::Lose));
        assert!(!drawn("all", 3, false).contains(&Incident::Lose));
        assert!(drawn("all", 1, false).contains(&Incident::Spell(Spell::Impatience)));
    }

    #[test]
    fn the_only_incident_is_due_once() {
        let mut incidents = Incidents::default();
        assert!(!incidents.is_due(9));
        incidents.set_after(5);
        assert_eq!([4, 5, 6].map(|requests| incidents.is_due(requests)), [false, true, false]);
    }
}
