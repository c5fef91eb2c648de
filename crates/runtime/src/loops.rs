//! One event loop: a thread that runs its roles and edges, and carries out what they ask for.
//!
//! A turn: look at the sockets (or sleep, if there is nothing to do) → edges take what is ready → roles handle
//! what has arrived, up to a bound so that sockets and timers are not kept waiting → timers → edges send the
//! answers that were gathered.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use ordain_model::{DigestSpan, Histogram, Micros};
use ordain_role::{Address, DiskRequest, Event, Now, Outbox, Role, Series, Work, WorkDone};
use rustix::time::{ClockId, clock_gettime};

use crate::clock::Clock;
use crate::control::{Control, Phase};
use crate::disk::{DiskPort, no_disk};
use crate::edge::{Departing, Edge, Tokens, Turn};
use crate::mailbox::{Inlet, Outlet, Party};
use crate::memory::SmallPages;
use crate::poller::Poller;
use crate::service::Line;
use crate::timers::Timers;

/// How many events roles handle in one turn at most.
const BURST: usize = 256;
/// The time that roles may run in one turn of a loop that has sockets to serve; one event may overrun it.
const BURST_TIME: Micros = Micros(500);
/// How many messages a turn takes from each other loop, so that none of them is starved.
const INTAKE: usize = 64;
/// How old a snapshot may get while a loop works.
const SNAPSHOT_AGE: Micros = Micros::from_millis(100);

/// The state of a loop at most 100 ms ago, plus the turn that was under way.
#[derive(Clone, Debug, Default)]
pub struct LoopSnapshot {
    /// The loop's name.
    pub name: String,
    /// Processor time that its thread has used.
    pub cpu: Duration,
    /// Turns made.
    pub turns: u64,
    /// The number of sleeps.
    pub sleeps: u64,
    /// Messages sent to other loops.
    pub sent: u64,
    /// Distributions of the loop's own: its turns, and the syncs that its roles have waited for.
    pub histograms: Vec<(Series, Histogram)>,
    /// The roles and edges.
    pub roles: Vec<RoleSnapshot>,
}

/// A role's part of a [`LoopSnapshot`].
#[derive(Clone, Debug, Default)]
pub struct RoleSnapshot {
    /// The number on the node.
    pub role: u16,
    /// The name.
    pub name: &'static str,
    /// Events handled.
    pub events: u64,
    /// The gauges, by metric name.
    pub gauges: Vec<(&'static str, f64)>,
    /// The distributions.
    pub histograms: Vec<(Series, Histogram)>,
    /// Digests of its state at the ends of epochs, in order of epochs.
    pub digests: Vec<DigestSpan>,
}

/// A role or an edge.
pub(crate) enum Behaviour<M> {
    Role(Box<dyn Role<Message = M>>),
    Edge(Box<dyn Edge<Message = M>>),
}

impl<M> Behaviour<M> {
    /// The behaviour as a role, which every edge is too.
    pub(crate) fn role(&self) -> &dyn Role<Message = M> {
        match self {
            Behaviour::Role(role) => &**role,
            Behaviour::Edge(edge) => &**edge,
        }
    }

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        match self {
            Behaviour::Role(role) => role.handle(now, event, out),
            Behaviour::Edge(edge) => edge.handle(now, event, out),
        }
    }
}

/// A role or an edge on its loop.
pub(crate) struct Actor<M> {
    pub(crate) address: Address,
    pub(crate) behaviour: Behaviour<M>,
    /// Events handled.
    pub(crate) events: u64,
    /// Changes of peers handled, which the network edge has sent.
    pub(crate) changes_seen: u64,
    /// The time that each event took, microseconds.
    pub(crate) times: Histogram,
}

/// The loop and the place of a role.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) on_loop: usize,
    pub(crate) place: usize,
}

/// An event or a message for an actor.
pub(crate) enum Arrival<M> {
    Event(Event<M>),
    /// To the network edge: a message for another node. In a box, so that messages within the node are not moved
    /// about with room for it.
    Departing(Box<Departing<M>>),
}

impl<M> Arrival<M> {
    fn message(from: Address, message: M) -> Arrival<M> {
        Arrival::Event(Event::Message { from, message })
    }
}

/// A message on its way to another loop.
pub(crate) enum Envelope<M> {
    Message { from: Address, place: usize, message: M },
    Departing { place: usize, departing: Box<Departing<M>> },
}

impl<M> Envelope<M> {
    /// The place it is for, and what happens there.
    fn open(self) -> (usize, Arrival<M>) {
        match self {
            Envelope::Message { from, place, message } => (place, Arrival::message(from, message)),
            Envelope::Departing { place, departing } => (place, Arrival::Departing(departing)),
        }
    }
}

/// Carries out what actors ask for.
pub(crate) struct Effects<M> {
    /// By role number.
    routes: Arc<[Option<Route>]>,
    /// The node's network edge.
    network: Option<Address>,
    /// To each loop of the node; none to this one.
    outlets: Vec<Option<Outlet<Envelope<M>>>>,
    disk: Option<DiskPort>,
    /// To and from the work thread, by place.
    work: Line<(usize, Work), (usize, WorkDone)>,
    control: Arc<Control>,
    /// What has happened to the actors of this loop, by place, in order.
    arrivals: VecDeque<(usize, Arrival<M>)>,
    timers: Timers,
    /// By place: the actors whose memory grows.
    small_pages: BTreeMap<usize, SmallPages>,
    /// Disk requests whose answers have not been handled.
    unanswered: usize,
    /// Messages sent to other loops.
    sent: u64,
    /// An actor of this loop has stopped the node, or has it be rebuilt: nothing is handled any more.
    halted: bool,
}

impl<M> Effects<M> {
    /// The effects of a loop on which nothing has happened, given its ways to other loops, the disk and the work thread.
    pub(crate) fn new(
        (routes, network): (Arc<[Option<Route>]>, Option<Address>),
        outlets: Vec<Option<Outlet<Envelope<M>>>>,
        disk: Option<DiskPort>,
        work: Line<(usize, Work), (usize, WorkDone)>,
        control: Arc<Control>,
    ) -> Effects<M> {
        Effects {
            routes,
            network,
            outlets,
            disk,
            work,
            control,
            arrivals: VecDeque::new(),
            timers: Timers::default(),
            small_pages: BTreeMap::new(),
            unanswered: 0,
            sent: 0,
            halted: false,
        }
    }

    /// Carries out what the actor at a place asks for, and leaves the outbox empty.
    fn carry_out(&mut self, place: usize, actor: &Actor<M>, now: Now, out: &mut Outbox<M>) {
        if let Some(reason) = out.halt.take() {
            return self.halt(format!("{}: {reason}", actor.behaviour.role().name()));
        }
        if let Some(how) = out.rebuild.take() {
            self.halted = true;
            return self.control.rebuild(how);
        }
        if let Some(reason) = out.restart.take() {
            self.halted = true;
            return self.control.restart(reason);
        }
        out.notices.drain(..).for_each(|notice| tracing::warn!("{notice}"));
        let (from, sent) = (actor.address, self.sent);
        for (to, message) in out.sends.drain(..) {
            let is_here = to.node == from.node;
            let role = if is_here { Some(to.role) } else { self.network.map(|network| network.role) };
            let Some(route) = role.and_then(|role| self.route(role)) else {
                let name = actor.behaviour.role().name();
                return self.halt(format!("{name} sent a message to {to:?}, which does not exist"));
            };
            let place = route.place;
            self.deliver(
                route,
                if is_here {
                    Envelope::Message { from, place, message }
                } else {
                    let departing = Departing { from, to, changes_seen: actor.changes_seen, message };
                    Envelope::Departing { place, departing: Box::new(departing) }
                },
            );
        }
        for (from, to, message) in out.relayed.drain(..) {
            match self.route(to.role) {
                Some(route) => self.deliver(route, Envelope::Message { from, place: route.place, message }),
                // Another node must not be able to halt this one.
                None => {
                    tracing::error!(?from, ?to, "dropped a message for a role that this node does not have")
                }
            }
        }
        if self.sent > sent {
            // At once, not at the end of the turn: a message is a batch, and its receiver may start.
            self.announce();
        }
        for (timer, delay) in out.timers.drain(..) {
            self.timers.set((place, timer), delay.map(|delay| now.elapsed.plus(delay)));
        }
        if !out.disk.is_empty() {
            self.submit(place, out.disk.drain(..));
        }
        if !out.work.is_empty() {
            out.work.drain(..).for_each(|work| self.work.jobs.send((place, work)));
            self.work.jobs.announce();
        }
        match out.memory_grows.take() {
            Some(true) => _ = self.small_pages.entry(place).or_insert_with(SmallPages::begin),
            Some(false) => _ = self.small_pages.remove(&place),
            None => {}
        }
    }

    fn route(&self, role: u16) -> Option<Route> {
        self.routes.get(usize::from(role)).copied().flatten()
    }

    fn deliver(&mut self, route: Route, envelope: Envelope<M>) {
        match self.outlets[route.on_loop].as_mut() {
            // Only this loop has no outlet.
            None => self.arrivals.push_back(envelope.open()),
            Some(outlet) => {
                outlet.send(envelope);
                self.sent += 1;
            }
        }
    }

    fn submit(&mut self, place: usize, requests: impl Iterator<Item = DiskRequest>) {
        for request in requests {
            self.unanswered += 1;
            let done = match &mut self.disk {
                Some(disk) => disk.submit(place, request),
                None => Some(no_disk(&request)),
            };
            self.arrivals.extend(done.map(|done| (place, Arrival::Event(Event::Disk(done)))));
        }
        self.disk.iter_mut().for_each(DiskPort::announce);
    }

    fn halt(&mut self, reason: String) {
        self.halted = true;
        self.control.halt(reason);
    }

    fn announce(&mut self) {
        self.outlets.iter_mut().flatten().for_each(Outlet::announce);
        self.work.jobs.announce();
        self.disk.iter_mut().for_each(DiskPort::announce);
    }

    /// Tells whether all that could not be handed over yet will wake this loop when it can.
    fn may_sleep(&self) -> bool {
        self.outlets.iter().flatten().all(Outlet::may_sleep)
            && self.work.jobs.may_sleep()
            && self.disk.as_ref().is_none_or(DiskPort::may_sleep)
    }

    fn awake(&self) {
        self.outlets.iter().flatten().for_each(Outlet::awake);
        self.work.jobs.awake();
        self.disk.iter().for_each(DiskPort::awake);
    }
}

/// Since when a loop is in its present turn, for other threads to see.
#[derive(Debug)]
pub(crate) struct Beat(AtomicU64);

impl Beat {
    /// What stands for a loop that rests.
    const RESTS: u64 = u64::MAX;

    /// A turn begins.
    fn begin(&self, now: Micros) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    /// The loop sleeps, or has ended.
    fn rest(&self) {
        self.0.store(Beat::RESTS, Ordering::Relaxed);
    }

    /// The duration of the present turn; 0 while the loop rests.
    pub(crate) fn turn(&self, now: Micros) -> Micros {
        let begun = self.0.load(Ordering::Relaxed);
        if begun == Beat::RESTS { Micros(0) } else { now.since(Micros(begun)) }
    }
}

impl Default for Beat {
    fn default() -> Beat {
        Beat(AtomicU64::new(Beat::RESTS))
    }
}

/// The times that pace a loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The time to look for work before sleeping.
    pub(crate) spin: Micros,
    /// The time that edges may take to finish what was begun, and roles after them.
    pub(crate) drain: Micros,
}

/// A loop, as its thread owns it.
pub(crate) struct EventLoop<M> {
    pub(crate) name: String,
    pub(crate) clock: Clock,
    pub(crate) pace: Pace,
    pub(crate) poller: Poller,
    pub(crate) me: Arc<Party>,
    pub(crate) control: Arc<Control>,
    /// Roles first, then edges.
    pub(crate) actors: Vec<Actor<M>>,
    pub(crate) first_edge: usize,
    pub(crate) inlets: Vec<Inlet<Envelope<M>>>,
    pub(crate) effects: Effects<M>,
    pub(crate) snapshot: Arc<Mutex<LoopSnapshot>>,
    pub(crate) beat: Arc<Beat>,
    pub(crate) state: State<M>,
}

/// The state of a loop between turns.
pub(crate) struct State<M> {
    now: Now,
    /// Empty between calls of actors; here to keep its memory.
    out: Outbox<M>,
    /// The place whose actor was called last: the one to name if it panics.
    acting: usize,
    /// The phase that this loop has acted upon.
    phase: Phase,
    /// While edges or roles finish: when they must have.
    finish_by: Option<Micros>,
    /// The number of roles that have not handled yet that the node stops.
    unstopped: usize,
    /// An edge wants another turn at once.
    again: bool,
    /// The time at which there last was something to do.
    busy_at: Micros,
    turns: u64,
    sleeps: u64,
    /// The time that each turn took in which something was handled, microseconds.
    turn_times: Histogram,
    snapshot_at: Micros,
    /// Something was handled since the last snapshot.
    changed: bool,
}

impl<M> Default for State<M> {
    fn default() -> Self {
        State {
            now: Now::default(),
            out: Outbox::default(),
            acting: 0,
            phase: Phase::Running,
            finish_by: None,
            unstopped: 0,
            again: false,
            busy_at: Micros(0),
            turns: 0,
            sleeps: 0,
            turn_times: Histogram::default(),
            snapshot_at: Micros(0),
            changed: true,
        }
    }
}

impl<M> fmt::Debug for EventLoop<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLoop").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<M> EventLoop<M> {
    /// Runs until the node stops.
    pub(crate) fn run(&mut self) {
        self.state.now = self.clock.now();
        for place in 0..self.actors.len() {
            self.handle(place, Event::Start);
        }
        while !self.effects.halted && self.obey() {
            self.rest();
            self.state.now = self.clock.now();
            self.state.turns += 1;
            let begun = self.state.now;
            self.beat.begin(begun.elapsed);
            let changed = std::mem::take(&mut self.state.changed);
            self.serve_edges();
            self.intake();
            self.run_roles();
            self.fire_timers();
            self.call_edges(|edge, now, out| edge.flush(now, out));
            self.effects.announce();
            if self.state.changed {
                let took = self.clock.since(begun).elapsed.since(begun.elapsed);
                self.state.turn_times.record_time(took);
            }
            self.state.changed |= changed;
            self.report();
        }
        self.beat.rest();
        self.report_now();
        if let Some(disk) = self.effects.disk.as_mut().filter(|_| !self.control.is_halted()) {
            disk.close();
        }
    }

    /// The name of the actor that was called last.
    pub(crate) fn acting(&self) -> &'static str {
        self.actors.get(self.state.acting).map_or("an empty loop", |actor| actor.behaviour.role().name())
    }

    /// Does what the phase asks for; false at the end.
    fn obey(&mut self) -> bool {
        let phase = self.control.phase();
        if phase == Phase::Stopping {
            return false;
        }
        if self.state.phase < phase {
            self.state.phase = phase;
            self.state.finish_by = Some(self.state.now.elapsed.plus(self.pace.drain));
            match phase {
                Phase::Draining => self.call_edges(|edge, now, out| edge.stop(now, out)),
                Phase::Closing => {
                    self.state.unstopped = self.first_edge;
                    let stops = (0..self.first_edge).map(|place| (place, Arrival::Event(Event::Stop)));
                    self.effects.arrivals.extend(stops);
                }
                Phase::Running | Phase::Stopping => {}
            }
        }
        if let Some(by) = self.state.finish_by {
            let finished = match phase {
                Phase::Draining => self.edges().all(|edge| edge.drained()),
                _ => self.state.unstopped == 0 && self.effects.unanswered == 0,
            };
            if finished || self.state.now.elapsed >= by {
                if !finished {
                    tracing::warn!(name = self.name, ?phase, "stopping although not everything is finished");
                }
                self.state.finish_by = None;
                match phase {
                    Phase::Draining => self.control.loop_drained(),
                    _ => self.control.loop_closed(),
                }
            }
        }
        true
    }

    fn edges(&self) -> impl Iterator<Item = &dyn Edge<Message = M>> {
        self.actors.iter().filter_map(|actor| match &actor.behaviour {
            Behaviour::Edge(edge) => Some(&**edge),
            Behaviour::Role(_) => None,
        })
    }

    fn has_edges(&self) -> bool {
        self.first_edge < self.actors.len()
    }

    /// Looks at the sockets; sleeps first if there is nothing to do.
    fn rest(&mut self) {
        let now = self.state.now.elapsed;
        let due = self.effects.timers.next_due();
        let busy = self.state.again
            || !self.effects.arrivals.is_empty()
            || due.is_some_and(|at| at <= now)
            || !self.nothing_arrived();
        if busy {
            self.state.busy_at = now;
        }
        if busy || now.since(self.state.busy_at) < self.pace.spin {
            if self.has_edges() {
                self.poller.look();
            } else if !busy {
                std::hint::spin_loop();
            }
            return;
        }
        let phase = self.state.phase;
        if self.me.bell().listen(|| self.nothing_arrived() && self.control.phase() == phase)
            && self.effects.may_sleep()
        {
            self.state.sleeps += 1;
            self.beat.rest();
            let report = self.state.changed.then(|| self.state.snapshot_at.plus(SNAPSHOT_AGE));
            match [due, self.state.finish_by, report].into_iter().flatten().min() {
                Some(until) => self.poller.wait_until(now, until),
                None => self.poller.wait_forever(),
            }
        } else if self.has_edges() {
            self.poller.look();
        }
        self.me.bell().ignore();
        self.effects.awake();
    }

    fn nothing_arrived(&self) -> bool {
        self.inlets.iter().all(Inlet::is_empty)
            && self.effects.work.answers.is_empty()
            && self.effects.disk.as_ref().is_none_or(DiskPort::is_empty)
    }

    fn serve_edges(&mut self) {
        let State { now, out, acting, changed, .. } = &mut self.state;
        for event in self.poller.sockets() {
            if self.effects.halted {
                return;
            }
            let place = self.first_edge + Tokens::edge_of(event.token());
            if let Some(actor) = self.actors.get_mut(place)
                && let Behaviour::Edge(edge) = &mut actor.behaviour
            {
                *acting = place;
                *changed = true;
                actor.events += 1;
                edge.ready(event, *now, out);
                self.effects.carry_out(place, actor, *now, out);
            }
        }
        let mut again = false;
        self.call_edges(|edge, now, out| again |= edge.turn(now, out) == Turn::Again);
        self.state.again = again;
    }

    fn call_edges(&mut self, mut call: impl FnMut(&mut dyn Edge<Message = M>, Now, &mut Outbox<M>)) {
        let State { now, out, acting, .. } = &mut self.state;
        for (place, actor) in self.actors.iter_mut().enumerate().skip(self.first_edge) {
            // An edge must not tell its clients anything once the node is known to be wrong.
            if let Behaviour::Edge(edge) = &mut actor.behaviour
                && !self.effects.halted
            {
                *acting = place;
                call(&mut **edge, *now, out);
                self.effects.carry_out(place, actor, *now, out);
            }
        }
    }

    /// Takes what other loops and the disk have sent.
    fn intake(&mut self) {
        let arrivals = &mut self.effects.arrivals;
        if arrivals.len() < BURST {
            for inlet in &mut self.inlets {
                inlet.take(INTAKE, |envelope| arrivals.push_back(envelope.open()));
            }
        }
        let work = &mut self.effects.work.answers;
        work.take(INTAKE, |(place, done)| arrivals.push_back((place, Arrival::Event(Event::Work(done)))));
        if let Some(disk) = &mut self.effects.disk {
            disk.answers(|answer| {
                arrivals.push_back((answer.place, Arrival::Event(Event::Disk(answer.done))))
            });
        }
    }

    fn run_roles(&mut self) {
        let until = self.state.now.elapsed.plus(BURST_TIME);
        for _ in 0..BURST {
            if self.effects.halted {
                break;
            }
            let Some((place, arrival)) = self.effects.arrivals.pop_front() else { break };
            match arrival {
                Arrival::Event(event) => self.handle(place, event),
                Arrival::Departing(departing) => self.depart(place, *departing),
            }
            let begun = self.state.now.elapsed;
            self.state.now = self.clock.since(self.state.now);
            self.actors[place].times.record_time(self.state.now.elapsed.since(begun));
            if self.has_edges() && self.state.now.elapsed >= until {
                break;
            }
        }
    }

    fn fire_timers(&mut self) {
        let pass = self.effects.timers.next_no();
        while !self.effects.halted
            && let Some((place, timer)) = self.effects.timers.pop(self.state.now.elapsed, pass)
        {
            self.handle(place, Event::Timer(timer));
        }
    }

    fn handle(&mut self, place: usize, event: Event<M>) {
        let State { now, out, acting, changed, unstopped, .. } = &mut self.state;
        let actor = &mut self.actors[place];
        *acting = place;
        *changed = true;
        match event {
            Event::Disk(_) => self.effects.unanswered -= 1,
            Event::Stop => *unstopped -= 1,
            Event::Message { from, .. } if self.effects.network == Some(from) => actor.changes_seen += 1,
            Event::Start | Event::Message { .. } | Event::Timer(_) | Event::Work(_) => {}
        }
        actor.events += 1;
        actor.behaviour.handle(*now, event, out);
        if !out.is_empty() {
            self.effects.carry_out(place, actor, *now, out);
        }
    }

    /// Hands the network edge a message for another node.
    fn depart(&mut self, place: usize, departing: Departing<M>) {
        let State { now, out, acting, changed, .. } = &mut self.state;
        let actor = &mut self.actors[place];
        *acting = place;
        *changed = true;
        actor.events += 1;
        match &mut actor.behaviour {
            Behaviour::Edge(edge) => edge.depart(departing, *now, out),
            Behaviour::Role(role) => out.halt(format!("{} is no network edge", role.name())),
        }
        if !out.is_empty() {
            self.effects.carry_out(place, actor, *now, out);
        }
    }

    /// Refreshes the snapshot if it is old.
    fn report(&mut self) {
        if self.state.changed && self.state.now.elapsed.since(self.state.snapshot_at) >= SNAPSHOT_AGE {
            self.report_now();
        }
    }

    pub(crate) fn report_now(&mut self) {
        // A reader holds it for a moment: next turn, then. After a panic of a holder it is overwritten whole.
        let mut snapshot = match self.snapshot.try_lock() {
            Ok(snapshot) => snapshot,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        snapshot.cpu = Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32);
        snapshot.turns = self.state.turns;
        snapshot.sleeps = self.state.sleeps;
        snapshot.sent = self.effects.sent;
        snapshot.histograms.clear();
        let turns = (Series::new("ordain_loop_turn_seconds"), self.state.turn_times.clone());
        snapshot.histograms.push(turns);
        if let Some(disk) = &self.effects.disk {
            snapshot.histograms.push((Series::new("ordain_disk_sync_seconds"), disk.syncs().clone()));
        }
        snapshot.roles.resize_with(self.actors.len(), RoleSnapshot::default);
        for (role, actor) in snapshot.roles.iter_mut().zip(&self.actors) {
            role.role = actor.address.role;
            role.name = actor.behaviour.role().name();
            role.events = actor.events;
            role.gauges.clear();
            actor.behaviour.role().gauges(&mut |name, value| role.gauges.push((name, value)));
            role.histograms.clear();
            let series = Series { name: "ordain_role_event_seconds", label: Some(("role", role.name)) };
            role.histograms.push((series, actor.times.clone()));
            actor
                .behaviour
                .role()
                .histograms(&mut |series, histogram| role.histograms.push((series, histogram.clone())));
            role.digests.clear();
            actor.behaviour.role().digests(&mut |span| role.digests.push(span));
        }
        drop(snapshot);
        self.state.snapshot_at = self.state.now.elapsed;
        self.state.changed = false;
    }
}
