//! The steps of roles: events that they handle, the messages, timers, disk requests and work that they ask for.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ordain_checker::{Violation, ViolationKind};
use ordain_family::{Incoming, Message};
use ordain_model::{Front, Micros, PauseNo};
use ordain_role::{Address, Directory, DiskOp, DiskRequest, Event, NodeId, Outbox, TimerId};

use crate::deposals::HeldStep;
use crate::network::DRIVER;
use crate::node::Node;
use crate::queue::Happening;
use crate::simulator::Simulator;
use crate::system::System;
use crate::trace::{EventText, Head};

/// The longest time that work takes which a role gives away, microseconds: longer than most of what happens meanwhile.
const WORK_US_MAX: u64 = 20_000;

impl<S: System> Simulator<'_, S> {
    pub(crate) fn push_event(&mut self, node: usize, role: u16, event: Event<S::Message>) {
        if let Some(slot) = self.nodes[node].roles.get_mut(&role) {
            slot.mailbox.push_back(event);
            self.wake(node, role);
        }
    }

    pub(crate) fn wake(&mut self, node: usize, role: u16) {
        let life = self.nodes[node].incarnation;
        let Some(slot) = self.nodes[node].roles.get_mut(&role) else { return };
        if !slot.awake && !slot.mailbox.is_empty() {
            slot.awake = true;
            let at = slot.ready_at.max(self.now);
            self.at(at, Happening::Step { node, life, role });
        }
    }

    /// Takes the core of a node for a step, where the system says how long that is: true at once if it is not, and when the
    /// time is over.
    fn takes_core(&mut self, number: usize, role: u16) -> bool {
        let (node, id) = (&mut self.nodes[number], NodeId(number as u16));
        let life = node.incarnation;
        let Some(slot) = node.roles.get_mut(&role).filter(|slot| slot.paid_ns.is_none()) else { return true };
        let Some(event) = slot.mailbox.front() else { return true };
        slot.paid_ns = self.system.cost_ns(id, role, event);
        let Some(cost) = slot.paid_ns.filter(|cost| *cost > 0) else { return true };
        node.core_free_ns = node.core_free_ns.max(1_000 * self.now.0) + cost;
        let at = Micros(node.core_free_ns.div_ceil(1_000));
        self.at(at, Happening::Step { node: number, life, role });
        false
    }

    pub(crate) fn step(&mut self, number: usize, role: u16) {
        if !self.takes_core(number, role) {
            return;
        }
        let holds = self.holds_after(number, role);
        let node = &mut self.nodes[number];
        let clock = node.clock.read(self.now);
        self.history.note_wall(clock.wall.to_millis());
        let Some(slot) = node.roles.get_mut(&role) else { return };
        slot.awake = false;
        let Some(event) = slot.mailbox.pop_front() else { return };
        let name = slot.role.name();
        let is_news = matches!(&event, Event::Message { from, .. } if from.role == DRIVER);
        self.trace.note(self.now, format_args!("{number}/{role} {name} {}", EventText(&event)));
        let mut out = Outbox::default();
        let asks = self.config.asks_roles;
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            slot.role.handle(clock, event, &mut out);
            if asks { slot.role.check() } else { Ok(()) }
        }));
        let has_ended = self.system.has_ended();
        let mut busy = if slot.paid_ns.take().is_some() { 0 } else { self.random.tail(slot.step_us_max) };
        if self.random.chance(self.intensity.stall_chance) {
            busy += self.random.tail(self.intensity.stall_us_max);
        }
        slot.ready_at = self.now.plus(Micros(busy));
        let broken = |kind, reason| Violation::new(kind, format!("node {number}, {name}: {reason}"));
        match stepped {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => return self.fail(broken(ViolationKind::Invariant, reason)),
            Err(panic) => return self.fail(broken(ViolationKind::Panicked, panic_text(&*panic))),
        }
        if has_ended {
            return self.ends(number);
        }
        if let Some(reason) = out.halt {
            if self.nodes[number].aside.is_some() {
                self.trace.note(self.now, format_args!("node {number} refuses: {reason}"));
                self.counts.refusals += 1;
                return self.crash(number);
            }
            if self.nodes[number].sync_failed {
                // What is on the disk is not known any more: stopping is right, and recovery finds out.
                self.trace.note(self.now, format_args!("node {number} stops: {reason}"));
                return self.crash(number);
            }
            return self.fail(broken(ViolationKind::Halted, reason));
        }
        if let Some(how) = out.rebuild {
            self.trace.note(self.now, format_args!("node {number} is rebuilt: {how:?}"));
            self.counts.rebuilds += 1;
            self.crash(number);
            return self.system.rebuild(NodeId(number as u16), how);
        }
        if let Some(reason) = out.restart {
            self.trace.note(self.now, format_args!("node {number} begins again: {reason}"));
            self.counts.begun_again += 1;
            return self.crash(number);
        }
        let step = HeldStep { role, out, is_news };
        if holds {
            return self.hold(number, step);
        }
        self.carry_out(number, step);
    }

    /// Does what the step of a role asks for.
    pub(crate) fn carry_out(&mut self, number: usize, step: HeldStep<S::Message>) {
        let HeldStep { role, out, is_news } = step;
        if is_news {
            self.news_handled(number, role);
        }
        let from = Address { node: NodeId(number as u16), role };
        if self.is_server(from) {
            self.note_submitted(from, &out.sends);
            self.server_stepped(number);
        }
        for (to, message) in out.sends {
            self.send(from, to, message);
        }
        for (timer, delay) in out.timers {
            self.set_timer(number, role, timer, delay);
        }
        for request in out.disk {
            self.ask_disk(number, role, request);
        }
        for work in out.work {
            let (takes, life) = (1 + self.random.tail(WORK_US_MAX), self.nodes[number].incarnation);
            self.after(takes, Happening::Work { node: number, life, role, done: work.run() });
            if self.system.has_ended() {
                return self.ends(number);
            }
        }
        self.wake(number, role);
    }

    fn set_timer(&mut self, number: usize, role: u16, timer: TimerId, delay: Option<Micros>) {
        let node = &mut self.nodes[number];
        let Some(slot) = node.roles.get_mut(&role) else { return };
        let Some(delay) = delay else {
            slot.timers.remove(&timer);
            return;
        };
        let setting = self.queue.scheduled();
        slot.timers.insert(timer, setting);
        let delay = node.clock.true_time(delay).0;
        let life = node.incarnation;
        self.after(delay, Happening::Timer { node: number, life, role, timer, setting });
    }

    pub(crate) fn send(&mut self, from: Address, to: Address, message: S::Message) {
        let Some(there) = self.nodes.get(to.node.0 as usize) else {
            let text = format!("a message was sent to node {}, which there is not", to.node.0);
            return self.fail(Violation::new(ViolationKind::Invariant, text));
        };
        if from.node != to.node {
            return self.post(from, to, &message);
        }
        let life = there.incarnation;
        let mut delay = self.random.tail(self.intensity.local_delay_us_max);
        if self.random.chance(self.intensity.stall_chance) {
            delay += self.random.tail(self.intensity.stall_us_max);
        }
        let last = self.arrivals.entry((from, to)).or_default();
        *last = self.now.plus(Micros(delay)).max(*last);
        let at = *last;
        self.at(at, Happening::Deliver { life, from, to, message });
    }

    /// A message has arrived that was sent in a life of its sender.
    pub(crate) fn deliver(&mut self, (from, life): (Address, u32), to: Address, message: S::Message) {
        if let Some(&door) = self.addresses.get(&to) {
            return match message.incoming() {
                Incoming::Peer(change) => self.tell_door(door, change),
                Incoming::Front(Front::Outcomes(batch)) => {
                    self.take_outcomes(door, (from.node, life), &batch);
                }
                Incoming::Front(Front::Continue(PauseNo::GREETING)) => self.greeted(door, from.node),
                Incoming::Front(Front::Continue(pause)) => {
                    self.doors[door].gateway.go_on_sending(from.node.0, pause);
                    self.flush_soon(door);
                }
                _ => {
                    let text = format!("front door {to:?} was sent something that is not for it");
                    self.fail(Violation::new(ViolationKind::Invariant, text));
                }
            };
        }
        if self.is_server(to)
            && let Incoming::Front(Front::Outcomes(batch)) = message.clone().incoming()
        {
            self.note_load(&batch);
            self.note_answered(to, (from.node, life), &batch);
        }
        if !self.nodes[to.node.0 as usize].roles.contains_key(&to.role) {
            let text = format!("a message was sent to {to:?}, where there is no role");
            return self.fail(Violation::new(ViolationKind::Invariant, text));
        }
        self.push_event(to.node.0 as usize, to.role, Event::Message { from, message });
    }

    pub(crate) fn ask_disk(&mut self, number: usize, role: u16, request: DiskRequest) {
        let Some(slot) = self.nodes[number].roles.get_mut(&role) else { return };
        let line = usize::from(request.in_background);
        if slot.disk[line].push(request) {
            self.schedule_disk(number, role, line);
        }
    }

    fn schedule_disk(&mut self, number: usize, role: u16, line: usize) {
        let Some(slot) = self.nodes[number].roles.get(&role) else { return };
        let most = match slot.disk[line].current() {
            Some(DiskOp::Sync { .. } | DiskOp::SyncDirectory) => self.intensity.sync_us_max,
            _ => self.intensity.write_us_max,
        };
        let mut takes = 1 + most / 4 + self.random.tail(most);
        if self.random.chance(self.intensity.slow_disk_chance) {
            takes *= 100;
        }
        let life = self.nodes[number].incarnation;
        self.after(takes, Happening::Disk { node: number, life, role, line });
    }

    pub(crate) fn disk_step(&mut self, number: usize, role: u16, line: usize) {
        let Simulator { nodes, random, trace, now, intensity, counts, .. } = self;
        let Node { disk, roles, crash_at_op, sync_failed, fails_sync, .. } = &mut nodes[number];
        let Some(slot) = roles.get_mut(&role) else { return };
        let op = slot.disk[line].current().cloned();
        if crash_at_op.is_some_and(|at| disk.ops() >= at) {
            // Power goes before the operation, or after it and before anybody hears of it.
            if let Some(op) = op.filter(|_| random.chance(500_000)) {
                // The role that asked is gone with the power.
                let _ = disk.apply(&op);
            }
            return self.crash(number);
        }
        let is_sync = matches!(op, Some(DiskOp::Sync { .. } | DiskOp::SyncDirectory));
        let fails_by_chance = is_sync && random.chance(intensity.sync_failure_chance);
        let fails = fails_by_chance || is_sync && std::mem::take(fails_sync);
        counts.faults += u64::from(fails_by_chance);
        counts.sync_failures += u32::from(fails);
        *sync_failed |= fails;
        disk.fail_syncs(fails);
        let result = op.as_ref().map_or(Ok(()), |op| disk.apply(op));
        disk.fail_syncs(false);
        trace.note(*now, format_args!("{number}/{role} disk {} {result:?}", Head(&op)));
        if let Some(DiskOp::Write { data, .. }) = &op {
            data.iter().for_each(|part| trace.cover(part));
        }
        if let Some(done) = slot.disk[line].advance(result) {
            slot.mailbox.push_back(Event::Disk(done));
            if slot.disk[line].is_busy() {
                self.schedule_disk(number, role, line);
            }
            self.wake(number, role);
        } else {
            self.schedule_disk(number, role, line);
        }
    }
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text").to_owned()
}
