//! The connection server: sessions on one side, a gateway on the other.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ordain_family::{Incoming, Message};
use ordain_gateway::{Dispatcher, Finished, Gateway, Owed, Ticket};
use ordain_model::{Effect, Front, Histogram, KeptReply, Micros, OutcomeBatch, OutcomeStatus, PauseNo};
use ordain_resp::memory::Report;
use ordain_resp::{ClientId, Context, Fate, LARGE_REPLY, Reason, Session, Shared};
use ordain_role::{Address, Event, NodeId, Now, Outbox, PeerChange, Role, Series, TimerId};

use crate::connections::{Connection, Connections, READ};
use crate::host::{Event as HostEvent, Host, Socket};
use crate::mailboxes::Mailboxes;
use crate::requests::SessionRequests;

/// The timer of the search for idle connections.
const IDLE: TimerId = TimerId(1);
pub(crate) const IDLE_PERIOD: Micros = Micros::from_millis(1000);
/// The timer of nodes that cannot be reached, and are given up in time.
const LOST: TimerId = TimerId(2);
const LOST_PERIOD: Micros = Micros::from_millis(100);
/// The timer of answers that are due after some time.
pub(crate) const WAITS: TimerId = TimerId(3);
/// The timer by which the first loop of a node measures its memory, and informs the other nodes.
const MEMORY: TimerId = TimerId(4);
const MEMORY_PERIOD: Micros = Micros::from_millis(100);
/// The timer of commands that wait for room, which may come though nothing has ended on this loop.
const ROOM: TimerId = TimerId(5);
const ROOM_PERIOD: Micros = Micros::from_millis(1);
/// The time that a client has to agree on keys.
pub(crate) const TLS_HANDSHAKE: Micros = Micros::from_millis(10_000);

/// The connection server of one event loop: its connections, their sessions, and the gateway.
#[derive(Debug)]
pub struct ConnectionServer<M, H: Host> {
    pub(crate) number: usize,
    pub(crate) gateway: Gateway,
    /// Sends the gateway's departures to the nodes of the cluster.
    pub(crate) dispatcher: Dispatcher,
    /// The timer [`LOST`] is set.
    awaits_lost: bool,
    /// Nothing more is taken in, and what is under way is to end.
    is_stopping: bool,
    pub(crate) shared: Shared,
    pub(crate) mailboxes: Arc<Mailboxes<H::Accepted>>,
    pub(crate) connections: Connections<H::Socket>,
    /// The server that the next accepted connection goes to.
    next_server: usize,
    /// Connections to go on with in the next turn.
    again: Vec<u32>,
    /// Connections with a command for which there is no room yet, the first to have come first.
    waiting: Vec<u32>,
    /// The timer [`ROOM`] is set.
    awaits_room: bool,
    /// The other nodes know of a limit of memory.
    has_reported_memory: bool,
    buffer: Box<[u8]>,
    /// The version of INFO's contents that the sessions have.
    info_version: u64,
    output_bytes: u64,
    pub(crate) requests: SessionRequests<H>,
    /// Answers that sessions have asked for after some time: when, and whose.
    pub(crate) waits: BTreeSet<(Micros, Ticket)>,
    /// The version of the users that the sessions know.
    pub(crate) users_version: u64,
    pub(crate) now: Micros,
    /// The time since the node started at which the first of the outcomes came in whose replies are sent at the end of this
    /// turn.
    answered_since: Option<Micros>,
    /// From then until the replies were written, microseconds.
    reply_times: Histogram,
    messages: PhantomData<fn(M)>,
}

/// The callback of a gateway that hands sessions the ends of their requests.
fn finish<'a, H: Host>(
    connections: &'a mut Connections<H::Socket>,
    shared: &'a mut Shared,
    control: &'a mut SessionRequests<H>,
    now: Micros,
) -> impl FnMut(&mut Gateway, Finished<'_>) + 'a {
    move |gateway, finished| {
        connections.finish(&finished, None, &mut Context { gateway, shared, control, now });
    }
}

impl<M: Message, H: Host> ConnectionServer<M, H> {
    /// The server of a loop, by its number among those of the node.
    pub fn new(
        number: usize,
        gateway: Gateway,
        dispatcher: Dispatcher,
        shared: Shared,
        mailboxes: Arc<Mailboxes<H::Accepted>>,
        host: H,
    ) -> Self {
        Self {
            number,
            gateway,
            dispatcher,
            awaits_lost: false,
            is_stopping: false,
            shared,
            mailboxes,
            connections: Connections::default(),
            next_server: 0,
            again: Vec::new(),
            waiting: Vec::new(),
            awaits_room: false,
            has_reported_memory: false,
            buffer: vec![0; READ].into_boxed_slice(),
            info_version: 0,
            output_bytes: 0,
            requests: SessionRequests::new(host),
            waits: BTreeSet::new(),
            users_version: 0,
            now: Micros(0),
            answered_since: None,
            reply_times: Histogram::default(),
            messages: PhantomData,
        }
    }

    /// What it has of its process.
    pub const fn host(&self) -> &H {
        &self.requests.host
    }

    /// What it has of its process, to be changed.
    pub const fn host_mut(&mut self) -> &mut H {
        &mut self.requests.host
    }

    /// Takes note of the time of the event that is handled next.
    pub fn note_time(&mut self, now: Now) {
        self.now = now.wall;
        self.shared.elapsed = now.elapsed;
    }

    /// Halts the node if an invariant of the gateway is broken. Builds with debug assertions alone can afford that.
    fn halt_if_broken(&self, out: &mut Outbox<M>) {
        if cfg!(debug_assertions)
            && let Err(reason) = self.gateway.check()
        {
            out.halt(format!("an invariant of the front door is broken: {reason}"));
        }
    }

    /// Counts a connection that comes in. False if there are as many as there may be: then it is to be turned away.
    pub fn admits(&self) -> bool {
        let limit = self.shared.settings.number("maxclients") as usize;
        let admits = self.mailboxes.open.load(Ordering::Relaxed) < limit;
        if admits {
            self.mailboxes.open.fetch_add(1, Ordering::Relaxed);
        } else {
            self.mailboxes.refused.fetch_add(1, Ordering::Relaxed);
        }
        admits
    }

    /// Gives an accepted connection, which was [counted](ConnectionServer::admits), to the next of the node's servers.
    pub fn share(&mut self, accepted: H::Accepted, out: &mut Outbox<M>) {
        let server = self.next_server;
        self.next_server = (server + 1) % self.mailboxes.count();
        if server == self.number {
            self.serve(accepted);
        } else {
            self.mailboxes.send(server, out, |mailbox| mailbox.connections.push(accepted));
        }
    }

    /// Makes a session for an accepted connection, which was [counted](ConnectionServer::admits).
    pub fn serve(&mut self, accepted: H::Accepted) {
        let slot = self.connections.take_slot();
        let Some((socket, ends)) = self.requests.host.open(accepted, slot) else {
            self.connections.give_back(slot);
            self.mailboxes.open.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        let client = ClientId(self.mailboxes.clients.fetch_add(1, Ordering::Relaxed) + 1);
        let id = self.connections.id(slot);
        let session = Session::new(id, client, (&ends.peer, &ends.local), self.now, &self.shared);
        self.connections.put(slot, Connection::new(socket, self.shared.elapsed, session));
        self.again.push(slot);
    }

    /// Reads and handles what a connection has sent, for as long as it may.
    fn take_input(&mut self, slot: u32) {
        let Self { gateway, connections, shared, requests, now, buffer, .. } = self;
        if let Some(connection) = connections.touch(slot) {
            connection.take_input(buffer, &mut Context { gateway, shared, control: requests, now: *now });
        }
    }

    /// While all connections of the node hold more than they may, closes the one of this loop that holds most.
    fn make_room(&mut self) {
        if !self.shared.memory.is_crowded() {
            return;
        }
        let most = self.connections.iter_mut().max_by_key(|(_, connection)| connection.session.held());
        let Some((slot, Connection { session, .. })) = most else { return };
        if !self.shared.memory.is_to_close(session.held()) {
            return;
        }
        let all = self.shared.memory.held();
        let closed = HostEvent::ClosedLargest { peer: session.peer(), bytes: session.held(), all };
        self.requests.host.note(closed);
        self.shared.counters.output_limit_total += 1;
        session.kill();
        self.send_output(slot);
    }

    /// Goes on with the connections whose commands had to wait, where there is room now.
    fn use_room(&mut self) {
        for slot in std::mem::take(&mut self.waiting) {
            let connection = self.connections.get(slot);
            let Some(connection) = connection.filter(|connection| connection.is_in_line) else { continue };
            if connection.session.is_waiting() && !connection.session.wants_input(&self.shared) {
                self.waiting.push(slot);
            } else {
                connection.is_in_line = false;
                self.take_input(slot);
            }
        }
    }

    /// Measures this node's memory, and reports it to the other nodes if there is a limit, or was.
    fn measure_memory(&mut self, out: &mut Outbox<M>) {
        let report = self.shared.memory.look();
        self.shared.memory.pass(self.now);
        if report != Report::UNLIMITED || self.has_reported_memory {
            for node in self.dispatcher.router().others() {
                let to = Address { node, role: self.mailboxes.first_role() };
                out.send(to, Front::Memory { is_over: report.is_over, room: report.room });
            }
        }
        self.has_reported_memory = report != Report::UNLIMITED;
    }

    fn take_outcomes(&mut self, batch: OutcomeBatch) {
        let batch = Arc::new(batch);
        let Self { gateway, connections, shared, requests, now, .. } = self;
        gateway.take_outcomes_with(&batch, |gateway, finished| {
            let mut cx = Context { gateway, shared, control: requests, now: *now };
            let large = finished.outcome.filter(|_| finished.reply.len() >= LARGE_REPLY);
            let kept = large.map(|outcome| KeptReply::new(&batch, outcome));
            connections.finish(&finished, kept, &mut cx);
        });
    }

    fn take_message(&mut self, from: NodeId, now: Now, message: Incoming<M>, out: &mut Outbox<M>) {
        match message {
            Incoming::Front(Front::Outcomes(batch)) => {
                if batch.is_empty() {
                    self.take_mail(out);
                } else {
                    self.answered_since.get_or_insert(now.elapsed);
                    self.take_outcomes(batch);
                }
            }
            Incoming::Front(Front::Continue(PauseNo::GREETING)) => {
                let owed = self.dispatcher.greeted(from);
                self.routes_changed(owed, out);
            }
            Incoming::Front(Front::Continue(pause)) => self.gateway.go_on_sending(from.0, pause),
            Incoming::Front(Front::Memory { is_over, room }) => {
                let about = (from.0, self.dispatcher.router().partition_of(from).0);
                return self.shared.memory.report(about, Report { is_over, room }, self.now);
            }
            Incoming::Peer(change) => self.peer_changed(change, out),
            Incoming::Front(_) | Incoming::Role(_) => {
                return out.halt("the front door was sent a message that is not for it");
            }
        }
        self.pass_on(out);
    }

    /// The stream to another node has changed: what waits for it may go, and what it may owe is given up.
    fn peer_changed(&mut self, change: PeerChange, out: &mut Outbox<M>) {
        let owed = self.dispatcher.change(&mut self.gateway, self.now, change);
        self.routes_changed(owed, out);
    }

    fn routes_changed(&mut self, owed: Option<Owed>, out: &mut Outbox<M>) {
        owed.into_iter().for_each(|owed| self.give_up(owed));
        self.watch_for_lost(out);
        self.dispatcher.retry(&mut self.gateway, |to, message| out.send(to, message));
        self.watch_for_lost(out);
    }

    /// Sets the timer [`LOST`] while something waits for what may never come.
    pub(crate) fn watch_for_lost(&mut self, out: &mut Outbox<M>) {
        if !self.awaits_lost && (self.is_stopping || self.dispatcher.waits()) {
            self.awaits_lost = true;
            out.set_timer(LOST, LOST_PERIOD);
        }
    }

    fn give_up(&mut self, owed: Owed) {
        let Self { gateway, connections, shared, requests, now, .. } = self;
        gateway.give_up(owed, finish(connections, shared, requests, *now));
    }

    /// Gives up what has been waited for too long, and turns away what was held as long: that was never sequenced. A node
    /// that stops gives up at once what cannot be answered because a partition is gone.
    fn give_up_overdue(&mut self) {
        let now = self.now;
        for owed in self.dispatcher.give_up(now) {
            self.give_up(owed);
        }
        // A node that stops does not wait for what would make it complete again.
        let is_hopeless = self.is_stopping && !self.dispatcher.router().is_complete();
        for chunk in self.dispatcher.expire(now, is_hopeless) {
            let mut busy = OutcomeBatch::new(chunk.gateway);
            for txn in chunk.txns() {
                busy.push(chunk.number, txn.index, Effect::NONE, OutcomeStatus::Busy, |_| {});
            }
            self.take_outcomes(busy);
        }
        if is_hopeless && self.gateway.outstanding() > 0 {
            let Self { gateway, connections, shared, requests, now, .. } = self;
            gateway.abandon(finish(connections, shared, requests, *now));
        }
    }

    /// Writes what a connection is owed and closes it if it is over.
    fn send_output(&mut self, slot: u32) {
        let Some(connection) = self.connections.get(slot) else { return };
        let (sent, takes_more) = connection.write_output();
        self.output_bytes += sent as u64;
        // In TLS what was taken may not have left.
        if connection.socket.has_pending() && connection.socket.flush().is_err() {
            connection.session.kill();
        }
        let is_leaving = connection.socket.has_pending() && !connection.session.is_killed();
        connection.session.settle(&self.shared);
        if connection.session.fate() == Fate::Close && !is_leaving {
            return self.close(slot);
        }
        if connection.session.is_waiting() {
            if !std::mem::replace(&mut connection.is_in_line, true) {
                self.waiting.push(slot);
            }
        } else if connection.can_go_on(&self.shared) {
            self.again.push(slot);
        }
        if takes_more {
            // No event will say so.
            self.connections.touch(slot);
        }
    }

    fn close(&mut self, slot: u32) {
        let Some(mut connection) = self.connections.remove(slot) else { return };
        connection.session.release(&mut self.gateway);
        connection.session.close(&self.shared);
        self.mailboxes.open.fetch_sub(1, Ordering::Relaxed);
        self.requests.host.close(connection.socket);
    }

    /// A socket is readable, or takes more; `is_ending` if the other end has closed its side or the socket has failed.
    pub fn readable(&mut self, number: u32, is_ending: bool) {
        let Some(connection) = self.connections.touch(number) else { return };
        connection.readable = true;
        connection.closing |= is_ending;
        self.take_input(number);
    }

    /// A socket takes more bytes.
    pub fn writable(&mut self, number: u32) {
        self.connections.touch(number);
    }

    /// Goes on with what no event announces; true if it wants another call at once. Called before other roles run.
    pub fn turn(&mut self, now: Now, out: &mut Outbox<M>) -> bool {
        self.note_time(now);
        for slot in std::mem::take(&mut self.again) {
            self.take_input(slot);
        }
        self.use_room();
        let version = self.mailboxes.info_version();
        if std::mem::replace(&mut self.info_version, version) != version {
            self.take_info();
        }
        self.pass_on(out);
        self.halt_if_broken(out);
        !self.again.is_empty()
    }

    /// Writes what the connections are owed. Called after other roles have run.
    pub fn flush(&mut self, now: Now, out: &mut Outbox<M>) {
        if let Some(since) = self.answered_since.take() {
            self.reply_times.record_time(now.elapsed.since(since));
        }
        for slot in self.connections.take_touched() {
            self.send_output(slot);
        }
        self.make_room();
        if !self.waiting.is_empty() && !self.awaits_room {
            self.awaits_room = true;
            out.set_timer(ROOM, ROOM_PERIOD);
        }
        if !self.again.is_empty() || !self.connections.is_untouched() {
            // Room was made for commands that have arrived already, or a socket takes more: no event will say so.
            self.mailboxes.wake(self.number, out);
        }
    }

    /// Begins the end of the node: takes no more requests, and answers those that were begun.
    pub fn stop(&mut self, now: Now, out: &mut Outbox<M>) {
        self.note_time(now);
        self.is_stopping = true;
        self.watch_for_lost(out);
        self.connections.touch_if(|connection| {
            connection.session.drain();
            true
        });
    }

    /// The number of requests, replies and other things that it has yet to come to an end with; 0 if nothing happens
    /// before something new comes in, or a timer of its own that nobody waits for.
    pub fn owed(&self) -> usize {
        let sessions = self.connections.iter().map(|Connection { session, input, .. }| {
            let may_go_on = !input.is_empty() && session.wants_input(&self.shared) && session.is_waiting();
            session.pending() + usize::from(!session.output().is_empty()) + usize::from(may_go_on)
        });
        sessions.sum::<usize>() + self.gateway.outstanding() + self.waits.len() + self.again.len()
    }

    /// Tells whether no connection is left.
    pub fn drained(&self) -> bool {
        self.connections.count() == 0
    }
}

impl<M: Message, H: Host> Role for ConnectionServer<M, H>
where
    Self: Send,
{
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        self.note_time(now);
        match event {
            Event::Message { from, message } => self.take_message(from.node, now, message.incoming(), out),
            Event::Start => {
                out.set_timer(IDLE, IDLE_PERIOD);
                if self.number == 0 {
                    out.set_timer(MEMORY, MEMORY_PERIOD);
                }
            }
            Event::Timer(WAITS) => {
                self.end_waits(out);
                self.pass_on(out);
            }
            Event::Timer(MEMORY) => {
                self.measure_memory(out);
                out.set_timer(MEMORY, MEMORY_PERIOD);
            }
            Event::Timer(ROOM) => self.awaits_room = false,
            Event::Timer(LOST) => {
                self.awaits_lost = false;
                self.give_up_overdue();
                self.pass_on(out);
                self.watch_for_lost(out);
            }
            Event::Timer(_) => {
                self.close_idle();
                self.requests.host.note(HostEvent::Second);
                out.set_timer(IDLE, IDLE_PERIOD);
            }
            Event::Disk(_) | Event::Work(_) | Event::Stop => {}
        }
        self.halt_if_broken(out);
    }

    fn name(&self) -> &'static str {
        "front"
    }

    fn check(&self) -> Result<(), String> {
        self.gateway.check()
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_front_connections", self.connections.count() as f64);
        report("ordain_front_commands_total", self.shared.counters.commands_total as f64);
        report("ordain_front_input_bytes_total", self.shared.counters.input_bytes_total as f64);
        report("ordain_front_output_bytes_total", self.output_bytes as f64);
        report("ordain_front_output_limit_total", self.shared.counters.output_limit_total as f64);
        if self.number == 0 {
            for (name, reason) in [
                ("ordain_acl_denied_auth_total", Reason::Auth),
                ("ordain_acl_denied_command_total", Reason::Command),
                ("ordain_acl_denied_key_total", Reason::Key),
                ("ordain_acl_denied_channel_total", Reason::Channel),
            ] {
                report(name, self.shared.access.refused(reason) as f64);
            }
        }
        report("ordain_front_cut_off_total", self.shared.counters.cut_off_total as f64);
        report("ordain_front_outstanding", self.gateway.outstanding() as f64);
    }

    fn histograms(&self, report: &mut dyn FnMut(Series, &Histogram)) {
        report(Series::stage("reply"), &self.reply_times);
    }
}
