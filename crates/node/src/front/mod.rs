//! The front door: sockets on one side, sessions and a gateway on the other.
//!
//! Each event loop has one [`ConnectionServer`]. The first also listens, and shares accepted connections out to all.
//! The servers of a node talk through [`Mailboxes`].

mod connections;
mod mailboxes;
mod requests;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mio::event::Event as Readiness;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};
use ordain_family::{Incoming, Message};
use ordain_gateway::{Dispatcher, Finished, Gateway, Owed, Ticket};
use ordain_model::{Effect, Front, Histogram, KeptReply, Micros, OutcomeBatch, OutcomeStatus, PauseNo};
use ordain_resp::memory::Report;
use ordain_resp::{ClientId, Context, Fate, LARGE_REPLY, Reason, Session, Shared};
use ordain_role::{Address, Event, NodeId, Now, Outbox, PeerChange, Role, Series, TimerId};
use ordain_runtime::{Current, Edge, Stream, Tokens, Turn};
use rustls::ServerConfig;

use crate::users_file::Desk;
use connections::{Connection, Connections, READ};
pub use mailboxes::Mailboxes;
use requests::SessionRequests;

/// The timer of the search for idle connections.
const IDLE: TimerId = TimerId(1);
const IDLE_PERIOD: Micros = Micros::from_millis(1000);
/// The timer of nodes that cannot be reached, and are given up in time.
const LOST: TimerId = TimerId(2);
const LOST_PERIOD: Micros = Micros::from_millis(100);
/// The timer of answers that are due after some time.
const WAITS: TimerId = TimerId(3);
/// The timer by which the first loop of a node measures its memory, and informs the other nodes.
const MEMORY: TimerId = TimerId(4);
const MEMORY_PERIOD: Micros = Micros::from_millis(100);
/// The timer of commands that wait for room, which may come though nothing has ended on this loop.
const ROOM: TimerId = TimerId(5);
const ROOM_PERIOD: Micros = Micros::from_millis(1);
/// The token number of the listening socket, and of the one for TLS.
const LISTENER: usize = 0;
const TLS_LISTENER: usize = 1;
/// The token number by which the thread of the users' file wakes this loop.
const USERS_FILE: usize = 2;
/// The token number of the first connection.
const FIRST_CONNECTION: usize = 3;
/// The time that a client has to agree on keys.
const TLS_HANDSHAKE: Micros = Micros::from_millis(10_000);

/// The connection server of one event loop: its sockets, their sessions, and the gateway.
pub struct ConnectionServer<M> {
    number: usize,
    gateway: Gateway,
    /// Sends the gateway's departures to the nodes of the cluster.
    dispatcher: Dispatcher,
    /// The timer [`LOST`] is set.
    awaits_lost: bool,
    /// Nothing more is taken in, and what is under way is to end.
    is_stopping: bool,
    shared: Shared,
    mailboxes: Arc<Mailboxes>,
    listener: Option<TcpListener>,
    tls_listener: Option<TcpListener>,
    tls: Option<Current<ServerConfig>>,
    /// Does ACL LOAD and ACL SAVE, if there is a file for that.
    users_file: Option<Desk>,
    poll: Option<(Registry, Tokens)>,
    connections: Connections,
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
    requests: SessionRequests,
    /// Answers that sessions have asked for after some time: when, and whose.
    waits: BTreeSet<(Micros, Ticket)>,
    /// The version of the users that the sessions know.
    users_version: u64,
    now: Micros,
    /// The time since the node started at which the first of the outcomes came in whose replies are sent at the end of this
    /// turn.
    answered_since: Option<Micros>,
    /// From then until the replies were written, microseconds.
    reply_times: Histogram,
    messages: PhantomData<fn(M)>,
}

/// The callback of a gateway that hands sessions the ends of their requests.
fn finish<'a>(
    connections: &'a mut Connections,
    shared: &'a mut Shared,
    control: &'a mut SessionRequests,
    now: Micros,
) -> impl FnMut(&mut Gateway, Finished<'_>) + 'a {
    move |gateway, finished| {
        connections.finish(&finished, None, &mut Context { gateway, shared, control, now });
    }
}

impl<M: Message> ConnectionServer<M> {
    /// A server of a loop; the one with the listener shares connections out to all.
    pub fn new(
        number: usize,
        gateway: Gateway,
        dispatcher: Dispatcher,
        shared: Shared,
        mailboxes: Arc<Mailboxes>,
        listener: Option<std::net::TcpListener>,
    ) -> Self {
        Self {
            number,
            gateway,
            dispatcher,
            awaits_lost: false,
            is_stopping: false,
            shared,
            mailboxes,
            listener: listener.map(TcpListener::from_std),
            tls_listener: None,
            tls: None,
            users_file: None,
            poll: None,
            connections: Connections::default(),
            next_server: 0,
            again: Vec::new(),
            waiting: Vec::new(),
            awaits_room: false,
            has_reported_memory: false,
            buffer: vec![0; READ].into_boxed_slice(),
            info_version: 0,
            output_bytes: 0,
            requests: SessionRequests::default(),
            waits: BTreeSet::new(),
            users_version: 0,
            now: Micros(0),
            answered_since: None,
            reply_times: Histogram::default(),
            messages: PhantomData,
        }
    }

    /// Has clients of the second listener, which one server has, be in TLS.
    #[must_use]
    pub fn with_tls(
        mut self,
        config: Option<Current<ServerConfig>>,
        listener: Option<std::net::TcpListener>,
    ) -> Self {
        self.tls = config;
        self.tls_listener = listener.map(TcpListener::from_std);
        self
    }

    /// Has ACL LOAD and ACL SAVE use a file.
    #[must_use]
    pub(crate) fn with_users_file(mut self, desk: Option<Desk>) -> Self {
        self.users_file = desk;
        self
    }

    /// Takes note of the time of the event that is handled.
    fn note_time(&mut self, now: Now) {
        self.now = now.wall;
        self.shared.elapsed = now.elapsed;
    }

    /// Halts the node if an invariant of the gateway is broken. Builds with debug assertions alone can afford that.
    fn check(&self, out: &mut Outbox<M>) {
        if cfg!(debug_assertions)
            && let Err(reason) = self.gateway.check()
        {
            out.halt(format!("an invariant of the front door is broken: {reason}"));
        }
    }

    fn accept(&mut self, is_tls: bool, out: &mut Outbox<M>) {
        while let Some(listener) = if is_tls { &self.tls_listener } else { &self.listener } {
            match listener.accept() {
                Ok((mut socket, _)) => {
                    let limit = self.shared.settings.number("maxclients") as usize;
                    if self.mailboxes.open.load(Ordering::Relaxed) >= limit {
                        self.mailboxes.refused.fetch_add(1, Ordering::Relaxed);
                        // Best effort: the client may be gone already. In TLS nothing has been agreed on that it could read.
                        if !is_tls {
                            let _ = socket.write(b"-ERR max number of clients reached\r\n");
                        }
                        continue;
                    }
                    self.mailboxes.open.fetch_add(1, Ordering::Relaxed);
                    let server = self.next_server;
                    self.next_server = (server + 1) % self.mailboxes.count();
                    if server == self.number {
                        self.admit(socket, is_tls);
                    } else {
                        self.mailboxes
                            .send(server, out, |mailbox| mailbox.connections.push((socket, is_tls)));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Out of file descriptors, most likely: the next connection event tries again.
                    tracing::warn!(%error, "cannot accept a connection");
                    return;
                }
            }
        }
    }

    /// Makes a session for an accepted connection.
    fn admit(&mut self, socket: TcpStream, is_tls: bool) {
        let Some((registry, tokens)) = &self.poll else { return };
        let stream = match self.tls.as_ref().filter(|_| is_tls) {
            None => Ok(Stream::Plain(socket)),
            Some(config) => Stream::accepted(socket, config.get()),
        };
        let mut stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "TLS with a client cannot begin");
                self.mailboxes.open.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        };
        let socket = stream.socket_mut();
        let slot = self.connections.take_slot();
        // Without it replies to a client that waits for each would be late; failing to set it costs only that.
        let _ = socket.set_nodelay(true);
        let token = tokens.token(slot as usize + FIRST_CONNECTION);
        if let Err(error) = registry.register(socket, token, Interest::READABLE | Interest::WRITABLE) {
            tracing::warn!(%error, "cannot watch a connection");
            self.connections.give_back(slot);
            self.mailboxes.open.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let name =
            |address: io::Result<SocketAddr>| address.map_or_else(|_| "?".to_owned(), |a| a.to_string());
        let (peer, local) = (name(socket.peer_addr()), name(socket.local_addr()));
        let client = ClientId(self.mailboxes.clients.fetch_add(1, Ordering::Relaxed) + 1);
        let id = self.connections.id(slot);
        let session = Session::new(id, client, (&peer, &local), self.now, &self.shared);
        self.connections.put(slot, Connection::new(stream, self.shared.elapsed, session));
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
        tracing::warn!(
            peer = session.peer(),
            bytes = session.held(),
            all = self.shared.memory.held(),
            "closed: the connections together hold more than maxmemory-clients, and this one most"
        );
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
    fn watch_for_lost(&mut self, out: &mut Outbox<M>) {
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
        if connection.socket.is_tls() {
            connection.socket.close();
        }
        if let Some((registry, _)) = &self.poll {
            // Dropping the socket takes it out of the poll anyway.
            let _ = registry.deregister(connection.socket.socket_mut());
        }
    }
}

impl<M> std::fmt::Debug for ConnectionServer<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionServer").field("number", &self.number).finish_non_exhaustive()
    }
}

impl<M: Message> Role for ConnectionServer<M> {
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
                self.requests.notices.tick();
                out.set_timer(IDLE, IDLE_PERIOD);
            }
            Event::Disk(_) | Event::Work(_) | Event::Stop => {}
        }
        self.check(out);
    }

    fn name(&self) -> &'static str {
        "front"
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

impl<M: Message> Edge for ConnectionServer<M> {
    fn register(&mut self, registry: Registry, tokens: Tokens) -> io::Result<()> {
        if let Some(listener) = &mut self.listener {
            registry.register(listener, tokens.token(LISTENER), Interest::READABLE)?;
        }
        if let Some(listener) = &mut self.tls_listener {
            registry.register(listener, tokens.token(TLS_LISTENER), Interest::READABLE)?;
        }
        if let Some(desk) = &mut self.users_file {
            registry.register(&mut desk.wake, tokens.token(USERS_FILE), Interest::READABLE)?;
        }
        self.poll = Some((registry, tokens));
        Ok(())
    }

    fn ready(&mut self, event: &Readiness, now: Now, out: &mut Outbox<M>) {
        self.note_time(now);
        let Some((_, tokens)) = &self.poll else { return };
        match tokens.number(event.token()) {
            LISTENER => self.accept(false, out),
            TLS_LISTENER => self.accept(true, out),
            USERS_FILE => self.take_users_file(),
            number => {
                let slot = (number - FIRST_CONNECTION) as u32;
                let Some(connection) = self.connections.touch(slot) else { return };
                if event.is_readable() || event.is_read_closed() || event.is_error() {
                    connection.readable = true;
                    connection.closing |= event.is_read_closed() || event.is_error();
                    self.take_input(slot);
                }
            }
        }
    }

    fn turn(&mut self, now: Now, out: &mut Outbox<M>) -> Turn {
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
        self.check(out);
        if self.again.is_empty() { Turn::Idle } else { Turn::Again }
    }

    fn flush(&mut self, now: Now, out: &mut Outbox<M>) {
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

    fn stop(&mut self, now: Now, out: &mut Outbox<M>) {
        self.note_time(now);
        self.is_stopping = true;
        self.watch_for_lost(out);
        for mut listener in [self.listener.take(), self.tls_listener.take()].into_iter().flatten() {
            if let Some((registry, _)) = &self.poll {
                // It is closed next.
                let _ = registry.deregister(&mut listener);
            }
        }
        self.connections.touch_if(|connection| {
            connection.session.drain();
            true
        });
    }

    fn drained(&self) -> bool {
        self.connections.count() == 0
    }
}
