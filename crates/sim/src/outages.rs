//! Outages of whole nodes: they lose power or their disk, stand still, end and start again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ordain_checker::{Violation, ViolationKind};
use ordain_model::{Gsn, Micros};
use ordain_role::{Event, NodeId};

use crate::client::Door;
use crate::clock::Clock;
use crate::deposals::Deposal;
use crate::faults::Intensity;
use crate::network::Cuts;
use crate::node::{FailingDirectory, Slot};
use crate::queue::Happening;
use crate::simulator::Simulator;
use crate::steps::panic_text;
use crate::system::System;

/// The number of looks at a node that may relapse, and the mean time between two, in virtual microseconds. A member hears twice a
/// second that its group does not keep any more what it needs.
const RELAPSE_LOOKS: u32 = 1_000;
const RELAPSE_LOOK_US: u64 = 1_000;

impl<S: System> Simulator<'_, S> {
    /// Schedules something that happens every so often, if it ever does.
    pub(crate) fn after_about(&mut self, mean: u64, happening: Happening<S::Message>) {
        if mean > 0 {
            let delay = self.random.between(1, 2 * mean);
            self.after(delay, happening);
        }
    }

    pub(crate) fn schedule_faults(&mut self) {
        for node in 0..self.nodes.len() {
            self.after_about(self.intensity.full_every_us, Happening::Fill { node });
            self.after_about(self.intensity.jump_every_us, Happening::Jump { node });
            self.after_about(self.intensity.freeze_every_us, Happening::Freeze { node });
        }
        if self.nodes.len() > 1 {
            self.after_about(self.intensity.partition_every_us, Happening::Cut);
            self.after_about(self.intensity.break_every_us, Happening::Break);
            self.after_about(self.intensity.loss_every_us, Happening::Lose);
        }
        for how in Deposal::ALL {
            self.after_about(self.intensity.depose_every_us[how as usize], Happening::Depose(how));
        }
    }

    /// Begins or ends a fault, while there are faults; what is of bytes happens as ever.
    pub(crate) fn befall(&mut self, fault: Happening<S::Message>) {
        match fault {
            Happening::Incident => self.incident(),
            Happening::TryIncident(incident) => self.try_incident(incident),
            Happening::SpellEnds(spell) => self.end_spell(spell),
            Happening::CrashDue { node, life } if self.lives(node, life) => {
                self.counts.faults += 1;
                if self.random.chance(500_000) {
                    self.crash(node);
                } else {
                    let ops = self.nodes[node].disk.ops() + self.random.tail(64);
                    self.nodes[node].crash_at_op = Some(ops);
                }
            }
            Happening::Relapse { node, life, looks } if self.lives(node, life) && !self.healed => {
                self.relapse((node, life), looks);
            }
            Happening::Fill { node } => {
                self.trace.note(self.now, format_args!("node {node} disk full"));
                self.counts.shortages += 1;
                self.counts.faults += 1;
                self.nodes[node].fill(true);
                let lasts = 1 + self.random.tail(self.intensity.full_us_max);
                self.after(lasts, Happening::Space { node });
            }
            Happening::Space { node } => {
                self.trace.note(self.now, format_args!("node {node} disk has space"));
                self.nodes[node].fill(false);
                self.after_about(self.intensity.full_every_us, Happening::Fill { node });
            }
            Happening::Cut => {
                let nodes = (0..self.nodes.len() as u16).map(NodeId);
                let zones: Vec<u16> = nodes.map(|node| self.system.zone(node)).collect();
                let cuts = Cuts::draw(&zones, &mut self.random);
                self.cut(cuts);
            }
            Happening::Mend => {
                self.trace.note(self.now, format_args!("partition ends"));
                self.cuts.mend();
                self.after_about(self.intensity.partition_every_us, Happening::Cut);
            }
            Happening::Break => {
                self.counts.faults += 1;
                self.break_connection();
                self.after_about(self.intensity.break_every_us, Happening::Break);
            }
            Happening::Lose => {
                self.after_about(self.intensity.loss_every_us, Happening::Lose);
                let node = self.random.index(self.nodes.len());
                let _ = self.lose_disk(node);
            }
            Happening::Depose(how) => {
                // Where nobody leads yet, or another leader is under way, it is tried again.
                if !self.depose(how) {
                    self.after_about(self.intensity.depose_every_us[how as usize], Happening::Depose(how));
                }
            }
            Happening::Freeze { node } => {
                self.after_about(self.intensity.freeze_every_us, Happening::Freeze { node });
                self.counts.faults += 1;
                self.freeze(node);
            }
            Happening::Jump { node } => {
                self.counts.faults += 1;
                self.jump(node);
            }
            other => self.happen_to_bytes(&other),
        }
    }

    /// Ends all faults: the network is whole, disks have space, every node is started. Nothing new is asked
    /// for; from here on the system has no excuse.
    pub fn transition_to_liveness(&mut self) {
        self.trace.note(self.now, format_args!("faults end"));
        self.healed = true;
        self.at_heal = (self.now, self.counts);
        self.cuts.mend();
        self.end_deposal();
        self.end_operations();
        let calm = Intensity::calm(&mut self.random);
        self.intensity = calm;
        for node in 0..self.nodes.len() {
            self.nodes[node].fill(false);
            self.nodes[node].fails_sync = false;
            self.nodes[node].crash_at_op = None;
            self.thaw(node);
            if !self.nodes[node].up {
                self.after(0, Happening::Restart { node });
            }
        }
    }

    /// Cuts ways between nodes for a while.
    pub(crate) fn cut(&mut self, cuts: Cuts) {
        self.cuts = cuts;
        self.counts.partitions += 1;
        self.counts.faults += 1;
        self.trace.note(self.now, format_args!("partition{}", self.cuts));
        let lasts = self.outage(self.intensity.partition_us_max);
        self.after(lasts, Happening::Mend);
    }

    /// Draws the time that an outage lasts: while there are faults, as the load has it.
    pub(crate) fn outage(&mut self, longest_us: u64) -> u64 {
        match self.healed {
            true => 1 + self.random.tail(longest_us),
            false => self.config.load.outage(longest_us, &mut self.random),
        }
    }

    /// The wall clock of a node jumps.
    pub(crate) fn jump(&mut self, node: usize) {
        let far = self.random.tail(self.intensity.jump_us_max) as i64;
        let by = if self.random.chance(500_000) { far } else { -far };
        self.trace.note(self.now, format_args!("node {node} wall clock jumps by {by}"));
        self.counts.jumps += 1;
        self.nodes[node].clock.jump(by);
        self.after_about(self.intensity.jump_every_us, Happening::Jump { node });
    }

    /// A node loses power, and starts again some time later.
    pub fn crash(&mut self, node: usize) {
        self.crash_for(node, self.intensity.down_us_max);
    }

    /// A node loses power, for so long at most.
    fn crash_for(&mut self, node: usize, down_us_max: u64) {
        self.trace.note(self.now, format_args!("node {node} crashes"));
        self.counts.crashes += 1;
        let random = &mut self.random;
        let crashed = &mut self.nodes[node];
        crashed.lose_power(|| random.bits());
        let life = crashed.incarnation;
        self.arrivals.retain(|(from, _), _| from.node.0 as usize != node);
        for (n, door) in
            (self.config.servers..).zip(self.doors.iter_mut().filter(|door| door.node.0 as usize == node))
        {
            *door = Door::new(door.node, self.system.door(door.node, life, n));
        }
        self.disconnect_clients(node);
        self.drop_servers(node);
        self.hang_up(node);
        let down = self.outage(down_us_max);
        self.after(down, Happening::Restart { node });
    }

    /// Has a node that has started lose power again once it catches up, if it does so soon.
    fn relapse(&mut self, (node, life): (usize, u32), looks: u32) {
        let gauge = |of: NodeId, name: &str| self.gauge(of, name);
        if self.system.catches_up(NodeId(node as u16), &gauge) {
            self.trace.note(self.now, format_args!("node {node} is to crash while it catches up"));
            return self.happen(Happening::CrashDue { node, life });
        }
        if let Some(looks) = looks.checked_sub(1) {
            let pause = self.random.between(1, 2 * RELAPSE_LOOK_US);
            self.after(pause, Happening::Relapse { node, life, looks });
        }
    }

    /// Reads a metric of the roles of a node; none if it is down, or has none of that name.
    pub(crate) fn gauge(&self, of: NodeId, name: &str) -> Option<f64> {
        let node = self.nodes.get(usize::from(of.0)).filter(|node| node.up)?;
        let mut found = None;
        for slot in node.roles.values() {
            slot.role.gauges(&mut |known, value| found = found.or((known == name).then_some(value)));
        }
        found
    }

    /// A node loses power and its disk. False if the system cannot bear that.
    pub(crate) fn lose_disk(&mut self, number: usize) -> bool {
        let node = NodeId(number as u16);
        let gauge = |of: NodeId, name: &str| self.gauge(of, name);
        if !self.nodes[number].up || !self.system.may_lose(node, &gauge) {
            return false;
        }
        self.trace.note(self.now, format_args!("node {number} loses its disk"));
        self.counts.disks_lost += 1;
        self.counts.faults += 1;
        self.crash(number);
        self.nodes[number].replace_disk();
        self.system.lose(node);
        true
    }

    /// A transaction has ended the process that executed it. Somebody will look after it.
    pub(crate) fn ends(&mut self, node: usize) {
        self.trace.note(self.now, format_args!("node {node} has executed what ends it"));
        self.counts.ends += 1;
        // Whatever starts it again does so after a pause.
        self.crash_for(node, self.intensity.down_us_max.max(20_000));
        if !std::mem::replace(&mut self.is_called, true) {
            let delay = 1 + self.random.tail(50_000);
            self.after(delay, Happening::Operate);
        }
    }

    /// An operator stops all nodes, looks at what was under way on those that have ended, and aborts that on all of them; now and
    /// then he forgets one that has not come to it.
    pub(crate) fn operate(&mut self) {
        self.is_called = false;
        self.counts.operations += 1;
        for node in 0..self.nodes.len() {
            if self.nodes[node].up {
                self.crash(node);
            }
        }
        let of = |node: usize| NodeId(node as u16);
        let places: Vec<Gsn> = self.system.under_way();
        self.trace.note(self.now, format_args!("the operator aborts {places:?}"));
        for node in 0..self.nodes.len() {
            let is_full = self.nodes[node].is_full;
            self.nodes[node].fill(false);
            let aborted = self.system.abort(of(node), &places, &mut self.nodes[node].disk);
            self.nodes[node].fill(is_full);
            if let Err(reason) = aborted {
                let text = format!("what ends node {node} cannot be aborted: {reason}");
                return self.fail(Violation::new(ViolationKind::Recovery, text));
            }
        }
    }

    /// A node takes the aborts of an operator from another's greeting.
    pub(crate) fn take_aborts(&mut self, node: usize, words: &[u8]) {
        if self.system.take_aborts(NodeId(node as u16), words, &mut self.nodes[node].disk) {
            self.trace.note(self.now, format_args!("node {node} begins again"));
            self.counts.heeds += 1;
            self.crash(node);
        }
    }

    /// A node stops in good order, as far as it can: its roles handle the stop, and what they ask of the disk is done. Then
    /// the power goes. To be called when no request is under way.
    pub fn stop(&mut self, node: usize, bound: Micros) {
        self.trace.note(self.now, format_args!("node {node} stops"));
        let roles: Vec<u16> = self.nodes[node].roles.keys().copied().collect();
        roles.into_iter().for_each(|role| self.push_event(node, role, Event::Stop));
        self.run(bound, |s| !s.nodes[node].has_closed());
        if self.failed.is_none() && !self.nodes[node].has_closed() {
            let text = format!("node {node} is to stop and has not finished");
            self.fail(Violation::new(ViolationKind::Stuck, text));
        }
        if self.failed.is_none() {
            self.crash(node);
        }
    }

    /// A node stands still: whatever comes due for it waits. Its clocks go on.
    pub fn freeze(&mut self, node: usize) {
        let frozen = &mut self.nodes[node];
        if !frozen.up || frozen.is_frozen {
            return;
        }
        frozen.is_frozen = true;
        let life = frozen.incarnation;
        self.trace.note(self.now, format_args!("node {node} stands still"));
        self.counts.freezes += 1;
        let lasts = self.outage(self.intensity.freeze_us_max);
        self.after(lasts, Happening::Thaw { node, life });
    }

    pub(crate) fn thaw(&mut self, node: usize) {
        if std::mem::take(&mut self.nodes[node].is_frozen) {
            self.trace.note(self.now, format_args!("node {node} goes on"));
            if let Some(step) = self.nodes[node].held_step.take() {
                self.carry_out(node, step);
            }
            for held in std::mem::take(&mut self.nodes[node].held) {
                self.happen(held);
            }
        }
    }

    pub(crate) fn restart(&mut self, number: usize) {
        let Simulator { nodes, random, intensity, system, trace, counts, now, .. } = self;
        let node = &mut nodes[number];
        if node.up {
            return;
        }
        let drift = random.between(0, 2 * u64::from(intensity.clock_drift)) as i64;
        node.clock = Clock::new(*now, drift - i64::from(intensity.clock_drift), node.clock.jumped());
        let left = random.chance(intensity.crash_in_recovery_chance).then(|| random.tail(16));
        let mut disk = FailingDirectory { disk: &mut node.disk, left };
        trace.note(*now, format_args!("node {number} starts, life {}", node.incarnation));
        counts.restarts += u32::from(node.incarnation > 0);
        let id = NodeId(number as u16);
        let started = catch_unwind(AssertUnwindSafe(|| system.start(id, node.incarnation, &mut disk)));
        let (failed, has_ended) = (disk.has_failed(), system.has_ended());
        let (kind, reason) = match started {
            // Recovery that ended with its last operation is interrupted by the same crash a moment later.
            Ok(_) if failed => return self.crash(number),
            // What is in its log ends it.
            Ok(_) if has_ended => return self.ends(number),
            Ok(Ok(roles)) => {
                node.up = true;
                let steps = intensity.local_delay_us_max;
                for (role, state) in roles {
                    node.roles.insert(role, Slot::new(state, random.tail(steps)));
                }
                let numbers: Vec<u16> = node.roles.keys().copied().collect();
                numbers.into_iter().for_each(|role| self.wake(number, role));
                let life = self.nodes[number].incarnation;
                self.after_about(self.intensity.crash_every_us, Happening::CrashDue { node: number, life });
                let relapses = self.config.load.relapse_chance;
                if relapses > 0 && life > 0 && self.random.chance(relapses) {
                    self.after(0, Happening::Relapse { node: number, life, looks: RELAPSE_LOOKS });
                }
                self.open_servers(number);
                self.open_links(number);
                self.accompany(number);
                return self.reconnect_clients();
            }
            Ok(Err(reason)) if node.is_full || node.aside.is_some() => {
                self.trace.note(self.now, format_args!("node {number} cannot start: {reason}"));
                return self.after(10_000, Happening::Restart { node: number });
            }
            Ok(Err(reason)) => (ViolationKind::Recovery, reason),
            Err(panic) => (ViolationKind::Panicked, panic_text(&*panic)),
        };
        self.fail(Violation::new(kind, format!("node {number} cannot start: {reason}")));
    }
}
