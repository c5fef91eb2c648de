//! The front door: sockets on one side, sessions and a gateway on the other.
//!
//! Each event loop has one [`Door`]. The first also listens, and shares accepted connections out to all. What
//! the doors say to each other goes through the [`Mailboxes`], with a knock: an empty batch of outcomes.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mio::event::Event as Readiness;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};
use ordain_family::{Incoming, Message};
use ordain_gateway::{Dispatcher, Finished, Gateway, Owed, Path, Ticket};
use ordain_model::{
    Effect, Front, Histogram, KeptReply, Micros, OutcomeBatch, OutcomeStatus, PauseNo, Writer,
};
use ordain_resp::memory::Report;
use ordain_resp::{
    ClientFilter, ClientId, ConnectionId, Context, Control, ControlRequest, Fate, LARGE_REPLY, NodeInfo,
    Notice, Reason, Session, Shared, UsersFileError,
};
use ordain_role::{Address, Event, NodeId, Now, Outbox, PeerChange, Role, Series, TimerId};
use ordain_runtime::{Current, Edge, Stream, Tokens, Turn};
use rustls::ServerConfig;

use crate::notices::Notices;
use crate::users_file::{Action, Desk, Done};

/// How much is read from one connection before the next has its turn, bytes.
const READ: usize = 64 << 10;
/// How much is sent to one connection before the next has its turn, bytes.
const SENT_AT_ONCE: usize = 4 << 20;
/// When idle connections are looked for, if a limit is set.
const IDLE: TimerId = TimerId(1);
const LOOK_FOR_IDLE: Micros = Micros::from_millis(1000);
/// When answers that were asked for after some time are due.
const WAITS: TimerId = TimerId(3);
/// When nodes that cannot be reached are given up.
const PATIENCE: TimerId = TimerId(2);
const LOOK_FOR_LOST: Micros = Micros::from_millis(100);
/// When commands for which there was no room are looked at again, though nothing has ended on this loop.
const ROOM: TimerId = TimerId(5);
const LOOK_FOR_ROOM: Micros = Micros::from_millis(1);
/// When the first loop of a node looks at its memory, and tells the other nodes how it stands.
const MEMORY: TimerId = TimerId(4);
const LOOK_AT_MEMORY: Micros = Micros::from_millis(100);
/// The token number of the listening socket, and of the one for TLS.
const LISTENER: usize = 0;
const TLS_LISTENER: usize = 1;
/// The token number by which the thread of the users' file wakes this loop.
const USERS_FILE: usize = 2;
/// The token number of the first connection.
const FIRST_CONNECTION: usize = 3;
/// How long a client has to agree on keys.
const TLS_HANDSHAKE: Micros = Micros::from_millis(10_000);
/// Most room that is made ahead for the rest of a command, bytes. What a client announces is not what it sends.
const ROOM_AHEAD: usize = READ;

/// Where the doors of a node leave things for each other.
#[derive(Debug)]
pub struct Mailboxes {
    boxes: Vec<Mutex<Mailbox>>,
    places: Vec<Address>,
    clients: AtomicU64,
    open: AtomicUsize,
    refused: AtomicU64,
    /// The parameter latency-monitor-threshold.
    spike_ms: AtomicU64,
    info: Mutex<NodeInfo>,
    /// As it was when CONFIG RESETSTAT was last called: INFO counts from there on.
    base: Mutex<NodeInfo>,
    info_version: AtomicU64,
}

#[derive(Debug, Default)]
struct Mailbox {
    connections: Vec<(TcpStream, bool)>,
    questions: Vec<Arc<Question>>,
    answers: Vec<Arc<Question>>,
    settings: Vec<(&'static str, String)>,
}

/// Something asked of the sessions of all doors.
#[derive(Debug)]
struct Question {
    request: ControlRequest,
    asker: usize,
    ticket: Ticket,
    left: AtomicUsize,
    killed: AtomicU64,
    lines: Mutex<Vec<(ClientId, String)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Whoever panicked while holding it has stopped the node already.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mailboxes {
    /// Mailboxes of doors at these addresses.
    pub fn new(places: Vec<Address>, info: NodeInfo) -> Mailboxes {
        Mailboxes {
            boxes: places.iter().map(|_| Mutex::default()).collect(),
            places,
            clients: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            spike_ms: AtomicU64::new(0),
            info: Mutex::new(info),
            base: Mutex::default(),
            info_version: AtomicU64::new(1),
        }
    }

    /// Refreshes what INFO shows.
    pub fn inform(&self, update: impl FnOnce(&mut NodeInfo)) {
        update(&mut lock(&self.info));
        self.info_version.fetch_add(1, Ordering::Release);
    }

    /// How long a latency spike is at least, milliseconds; nothing if none are looked for.
    pub fn spike_ms(&self) -> Option<u64> {
        Some(self.spike_ms.load(Ordering::Relaxed)).filter(|ms| *ms > 0)
    }

    /// What INFO shows counts from here on.
    fn reset_statistics(&self) {
        let info = lock(&self.info);
        lock(&self.base).clone_from(&info);
        self.info_version.fetch_add(1, Ordering::Release);
    }

    /// What INFO shows.
    fn shown(&self) -> NodeInfo {
        let info = lock(&self.info);
        info.since(&lock(&self.base))
    }

    /// Open connections, connections ever made, connections turned away.
    pub fn connections(&self) -> (usize, u64, u64) {
        let at = Ordering::Relaxed;
        (self.open.load(at), self.clients.load(at), self.refused.load(at))
    }

    /// Leaves something in a door's box and knocks.
    fn leave(&self, door: usize, out: &mut Outbox<impl From<Front>>, put: impl FnOnce(&mut Mailbox)) {
        put(&mut lock(&self.boxes[door]));
        out.send(self.places[door], Front::Outcomes(OutcomeBatch::default()));
    }
}

/// One event loop's connections.
pub struct Door<M> {
    number: usize,
    gateway: Gateway,
    /// What takes the gateway's departures to the nodes of the cluster.
    dispatcher: Dispatcher,
    /// The timer for what is waited for too long is set.
    is_looking: bool,
    /// Nothing more is taken in, and what is under way is to end.
    is_stopping: bool,
    shared: Shared,
    mailboxes: Arc<Mailboxes>,
    listener: Option<TcpListener>,
    tls_listener: Option<TcpListener>,
    tls: Option<Current<ServerConfig>>,
    /// Where ACL LOAD and ACL SAVE are done, if there is a file for that.
    users_file: Option<Desk>,
    registry: Option<Registry>,
    tokens: Option<Tokens>,
    connections: Vec<Slot>,
    vacant: Vec<u32>,
    next_door: usize,
    /// Connections that have something to send or to go on with.
    touched: Vec<u32>,
    /// Connections to go on with in the next turn.
    again: Vec<u32>,
    /// Connections with a command for which there is no room yet, the first to have come first.
    waiting: Vec<u32>,
    /// The timer for those is set.
    awaits_room: bool,
    /// The other nodes have been told of a limit of memory.
    has_told: bool,
    buffer: Box<[u8]>,
    informed: u64,
    output_bytes: u64,
    asked: Asked,
    /// Answers that sessions have asked for after some time: when, and whose.
    waits: BTreeMap<(Micros, Ticket), ()>,
    /// The version of the users that the sessions know.
    users_version: u64,
    now: Micros,
    /// When the first of the outcomes came in whose replies are to be sent at the end of this turn, time since the node
    /// started.
    answered_since: Option<Micros>,
    /// From then until the replies were written, microseconds.
    reply_times: Histogram,
    messages: PhantomData<fn(M)>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    connection: Option<Connection>,
}

#[derive(Debug)]
struct Connection {
    socket: Stream,
    /// When it was made.
    since: Micros,
    session: Session,
    /// What was read and not consumed.
    input: Vec<u8>,
    /// The socket may have more to read; with edge-triggered events nobody says so twice.
    readable: bool,
    /// The other end has closed its side or the socket has failed, and reading has not come to that yet. No further
    /// event will say so.
    closing: bool,
    /// The session took no more of `input` although a whole command may be in it.
    stopped: bool,
    /// The other end has closed its side, or the socket has failed.
    ended: bool,
    is_touched: bool,
    /// It is among those that wait for room.
    is_in_line: bool,
}

/// What sessions have asked for while they were being called.
#[derive(Debug, Default)]
struct Asked {
    questions: Vec<(Ticket, ControlRequest)>,
    settings: Vec<(&'static str, String)>,
    notices: Notices,
    users_changed: bool,
    reset: bool,
}

impl Control for Asked {
    fn request(&mut self, ticket: Ticket, request: ControlRequest) {
        self.questions.push((ticket, request));
    }

    fn setting_changed(&mut self, name: &'static str, value: &str) {
        self.settings.push((name, value.to_owned()));
    }

    fn reset_statistics(&mut self) {
        self.reset = true;
    }

    fn notice(&mut self, notice: Notice<'_>) {
        self.notices.note(notice);
    }

    fn users_changed(&mut self) {
        self.users_changed = true;
    }

    fn random(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        bytes.iter_mut().for_each(|byte| *byte = rand::random());
        Ok(())
    }
}

impl<M: Message> Door<M> {
    /// A door of a loop; the one with the listener shares connections out to all doors.
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
            is_looking: false,
            is_stopping: false,
            shared,
            mailboxes,
            listener: listener.map(TcpListener::from_std),
            tls_listener: None,
            tls: None,
            users_file: None,
            registry: None,
            tokens: None,
            connections: Vec::new(),
            vacant: Vec::new(),
            next_door: 0,
            touched: Vec::new(),
            again: Vec::new(),
            waiting: Vec::new(),
            awaits_room: false,
            has_told: false,
            buffer: vec![0; READ].into_boxed_slice(),
            informed: 0,
            output_bytes: 0,
            asked: Asked::default(),
            waits: BTreeMap::new(),
            users_version: 0,
            now: Micros(0),
            answered_since: None,
            reply_times: Histogram::default(),
            messages: PhantomData,
        }
    }

    /// Has clients of the second listener, which one door has, be in TLS.
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
    fn tell_time(&mut self, now: Now) {
        self.now = now.wall;
        self.shared.elapsed = now.elapsed;
    }

    fn accept(&mut self, is_tls: bool, out: &mut Outbox<M>) {
        while let Some(listener) = if is_tls { &self.tls_listener } else { &self.listener } {
            match listener.accept() {
                Ok((socket, _)) => {
                    let limit = self.shared.settings.number("maxclients") as usize;
                    if self.mailboxes.open.load(Ordering::Relaxed) >= limit {
                        self.mailboxes.refused.fetch_add(1, Ordering::Relaxed);
                        let mut socket = socket;
                        // Best effort: the client may be gone already. In TLS nothing has been agreed on that it could read.
                        if !is_tls {
                            let _ = socket.write(b"-ERR max number of clients reached\r\n");
                        }
                        continue;
                    }
                    self.mailboxes.open.fetch_add(1, Ordering::Relaxed);
                    let door = self.next_door;
                    self.next_door = (door + 1) % self.mailboxes.boxes.len();
                    if door == self.number {
                        self.welcome(socket, is_tls);
                    } else {
                        self.mailboxes.leave(door, out, |mailbox| mailbox.connections.push((socket, is_tls)));
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

    fn welcome(&mut self, socket: TcpStream, is_tls: bool) {
        let (Some(registry), Some(tokens)) = (&self.registry, self.tokens) else { return };
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
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.connections.push(Slot::default());
            self.connections.len() as u32 - 1
        });
        // Without it replies to a client that waits for each would be late; failing to set it costs only that.
        let _ = socket.set_nodelay(true);
        let token = tokens.token(slot as usize + FIRST_CONNECTION);
        if let Err(error) = registry.register(socket, token, Interest::READABLE | Interest::WRITABLE) {
            tracing::warn!(%error, "cannot watch a connection");
            self.vacant.push(slot);
            self.mailboxes.open.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let name =
            |address: io::Result<SocketAddr>| address.map_or_else(|_| "?".to_owned(), |a| a.to_string());
        let (peer, local) = (name(socket.peer_addr()), name(socket.local_addr()));
        let client = ClientId(self.mailboxes.clients.fetch_add(1, Ordering::Relaxed) + 1);
        let id = ConnectionId::new(slot, self.connections[slot as usize].generation);
        let session = Session::new(id, client, (&peer, &local), self.now, &self.shared);
        let connection = Connection {
            socket: stream,
            since: self.shared.elapsed,
            session,
            input: Vec::new(),
            readable: true,
            closing: false,
            stopped: false,
            ended: false,
            is_touched: false,
            is_in_line: false,
        };
        self.connections[slot as usize].connection = Some(connection);
        self.again.push(slot);
    }

    fn touch(touched: &mut Vec<u32>, slot: u32, connection: &mut Connection) {
        if !connection.is_touched {
            connection.is_touched = true;
            touched.push(slot);
        }
    }

    /// Reads and handles what a connection has sent, for as long as it may.
    fn take_input(&mut self, slot: u32) {
        let Some(connection) = self.connections.get_mut(slot as usize).and_then(|s| s.connection.as_mut())
        else {
            return;
        };
        Self::touch(&mut self.touched, slot, connection);
        let mut cx = Context {
            gateway: &mut self.gateway,
            shared: &mut self.shared,
            control: &mut self.asked,
            now: self.now,
        };
        let has_input = connection.session.is_waiting() || !connection.input.is_empty();
        if has_input && connection.session.wants_input(cx.shared) {
            let received = connection.session.receive(&connection.input, &mut cx);
            connection.input.drain(..received.consumed.min(connection.input.len()));
            connection.stopped = received.wanted == 0;
        }
        let mut budget = READ;
        while connection.readable && budget > 0 && connection.session.wants_input(cx.shared) {
            match connection.socket.read(&mut self.buffer) {
                Ok(0) => {
                    connection.readable = false;
                    connection.ended = true;
                }
                Ok(n) => {
                    budget = budget.saturating_sub(n);
                    // A short read has emptied the socket, but for the end that an event has told of already; what
                    // comes later is a new event.
                    connection.readable =
                        n == self.buffer.len() || connection.closing || connection.socket.is_tls();
                    let before = connection.input.len();
                    if before == 0 {
                        let received = connection.session.receive(&self.buffer[..n], &mut cx);
                        let rest = &self.buffer[received.consumed.min(n)..n];
                        connection.stopped = received.wanted == 0;
                        connection.input.reserve_exact(if rest.is_empty() {
                            0
                        } else {
                            rest.len() + received.wanted.min(ROOM_AHEAD)
                        });
                        connection.input.extend_from_slice(rest);
                    } else {
                        connection.input.extend_from_slice(&self.buffer[..n]);
                        let received = connection.session.receive(&connection.input, &mut cx);
                        connection.stopped = received.wanted == 0;
                        let consumed = received.consumed.min(connection.input.len());
                        connection.input.drain(..consumed);
                    }
                    if connection.input.is_empty() && connection.input.capacity() > READ {
                        connection.input = Vec::new();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => connection.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    connection.readable = false;
                    connection.ended = true;
                    connection.session.kill();
                }
            }
        }
        if connection.ended {
            connection.session.drain();
        }
        connection.session.keep_input(connection.input.len(), cx.shared);
    }

    /// Takes over what INFO shows now.
    fn take_info(&mut self) {
        self.shared.node = self.mailboxes.shown();
        self.shared.node.memory_clients_bytes = self.shared.memory.held();
    }

    /// While all connections of the node hold more than they may, closes the one of this loop that holds most.
    fn make_room(&mut self) {
        if !self.shared.memory.is_crowded() {
            return;
        }
        let connections = self.connections.iter_mut().zip(0..);
        let open = connections.filter_map(|(slot, number)| Some((slot.connection.as_mut()?, number)));
        let Some((connection, slot)) = open.max_by_key(|(connection, _)| connection.session.held()) else {
            return;
        };
        let session = &mut connection.session;
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
    fn look_for_room(&mut self) {
        for slot in std::mem::take(&mut self.waiting) {
            let connection =
                self.connections.get_mut(slot as usize).and_then(|slot| slot.connection.as_mut());
            let Some(connection) = connection.filter(|connection| connection.is_in_line) else { continue };
            if connection.session.is_waiting() && !connection.session.wants_input(&self.shared) {
                self.waiting.push(slot);
            } else {
                connection.is_in_line = false;
                self.take_input(slot);
            }
        }
    }

    /// Looks at this node's memory, and tells the others how it stands if there is a limit, or was.
    fn look_at_memory(&mut self, out: &mut Outbox<M>) {
        let report = self.shared.memory.look();
        self.shared.memory.pass(self.now);
        if report != Report::UNLIMITED || self.has_told {
            for node in self.dispatcher.router().others() {
                let to = Address { node, role: self.mailboxes.places[0].role };
                out.send(to, Front::Memory { is_over: report.is_over, room: report.room });
            }
        }
        self.has_told = report != Report::UNLIMITED;
    }

    fn take_outcomes(&mut self, batch: OutcomeBatch) {
        let batch = Arc::new(batch);
        let Self { gateway, connections, shared, asked, touched, now, .. } = self;
        gateway.take_outcomes_with(&batch, |gateway, finished| {
            let mut cx = Context { gateway, shared, control: asked, now: *now };
            let large = finished.outcome.filter(|_| finished.reply.len() >= LARGE_REPLY);
            let kept = large.map(|outcome| KeptReply::new(&batch, outcome));
            Self::tell(connections, touched, (&finished, kept), &mut cx);
        });
    }

    /// Tells a connection how its request ended.
    fn tell(
        connections: &mut [Slot],
        touched: &mut Vec<u32>,
        (finished, kept): (&Finished<'_>, Option<KeptReply>),
        cx: &mut Context<'_>,
    ) {
        let slot = ConnectionId::of(finished.ticket).slot();
        if let Some(connection) = connections.get_mut(slot).and_then(|s| s.connection.as_mut()) {
            connection.session.finished_kept(finished, kept, cx);
            Self::touch(touched, slot as u32, connection);
        }
    }

    /// Empties this door's box.
    fn look_in_box(&mut self, out: &mut Outbox<M>) {
        let Mailbox { connections, questions, answers, settings } =
            std::mem::take(&mut *lock(&self.mailboxes.boxes[self.number]));
        for (name, value) in settings {
            // Checked where it was asked for.
            let _ = self.shared.settings.set(name, &value);
        }
        connections.into_iter().for_each(|(socket, is_tls)| self.welcome(socket, is_tls));
        for question in questions {
            self.answer_part(&question, out);
        }
        for question in answers {
            let mut reply = Vec::new();
            match &question.request {
                ControlRequest::ListClients(_) => {
                    let mut lines = std::mem::take(&mut *lock(&question.lines));
                    lines.sort_by_key(|(client, _)| *client);
                    let text: String = lines.into_iter().map(|(_, line)| line).collect();
                    Writer(&mut reply).bulk(text.as_bytes());
                }
                ControlRequest::KillClients(_) => {
                    Writer(&mut reply).int(question.killed.load(Ordering::Relaxed) as i64);
                }
                // They are answered by a timer, and by another thread.
                ControlRequest::Wait(_) | ControlRequest::LoadUsers | ControlRequest::SaveUsers => {}
            }
            self.answer(question.ticket, &reply);
        }
    }

    /// Gives a session what it has asked the node for.
    fn answer(&mut self, ticket: Ticket, reply: &[u8]) {
        let finished =
            Finished { reply, ..Finished::nowhere(ticket, OutcomeStatus::Committed, Path::Snapshot) };
        let slot = ConnectionId::of(ticket).slot();
        let Self { gateway, connections, shared, asked, touched, now, .. } = self;
        let Some(connection) = connections.get_mut(slot).and_then(|s| s.connection.as_mut()) else { return };
        connection.session.finished(&finished, &mut Context { gateway, shared, control: asked, now: *now });
        Self::touch(touched, slot as u32, connection);
    }

    /// This door's part of an answer; the last door to have done its part tells the one that asked.
    fn answer_part(&mut self, question: &Arc<Question>, out: &mut Outbox<M>) {
        let now = self.now;
        let matching = |filter: &ClientFilter, session: &Session| filter.matches(session);
        for slot in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[slot].connection else { continue };
            match &question.request {
                ControlRequest::ListClients(filter) if matching(filter, &connection.session) => {
                    let mut line = String::new();
                    connection.session.describe(now, &mut line);
                    lock(&question.lines).push((connection.session.client(), line));
                }
                ControlRequest::KillClients(filter) if matching(filter, &connection.session) => {
                    question.killed.fetch_add(1, Ordering::Relaxed);
                    if ConnectionId::of(question.ticket) == connection.session.id()
                        && question.asker == self.number
                    {
                        connection.session.drain();
                    } else {
                        connection.session.kill();
                    }
                    Self::touch(&mut self.touched, slot as u32, connection);
                }
                _ => {}
            }
        }
        if question.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.mailboxes.leave(question.asker, out, |mailbox| mailbox.answers.push(question.clone()));
        }
    }

    /// Closes connections that have been silent for longer than the setting `timeout` allows.
    fn close_idle(&mut self) {
        for slot in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[slot].connection else { continue };
            if connection.socket.is_handshaking()
                && self.shared.elapsed.since(connection.since) > TLS_HANDSHAKE
            {
                connection.session.kill();
                Self::touch(&mut self.touched, slot as u32, connection);
            }
        }
        let limit = Micros(self.shared.settings.number("timeout") * 1_000_000);
        for slot in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[slot].connection else { continue };
            let session = &mut connection.session;
            if self.now.since(session.active()) > LOOK_FOR_IDLE {
                // Ten thousand that have nothing to do should not hold a buffer each.
                session.trim();
                connection.input.shrink_to_fit();
            }
            if limit > Micros(0) && session.pending() == 0 && self.now.since(session.active()) > limit {
                session.kill();
                Self::touch(&mut self.touched, slot as u32, connection);
            }
        }
    }

    /// Passes on what sessions have asked for.
    fn pass_on(&mut self, out: &mut Outbox<M>) {
        for (ticket, request) in std::mem::take(&mut self.asked.questions) {
            let action = match request {
                ControlRequest::Wait(time) => {
                    self.waits.insert((self.shared.elapsed.plus(time), ticket), ());
                    self.set_wait_timer(out);
                    continue;
                }
                ControlRequest::LoadUsers => Some(Action::Load),
                ControlRequest::SaveUsers => Some(Action::Save),
                ControlRequest::ListClients(_) | ControlRequest::KillClients(_) => None,
            };
            if let Some(action) = action {
                match &self.users_file {
                    Some(desk) => desk.ask(action, ticket),
                    None => self.answer(ticket, &UsersFileError::reply(Err(UsersFileError::NoFile))),
                }
                continue;
            }
            let doors = self.mailboxes.boxes.len();
            let question = Arc::new(Question {
                request,
                asker: self.number,
                ticket,
                left: AtomicUsize::new(doors),
                killed: AtomicU64::new(0),
                lines: Mutex::default(),
            });
            for door in 0..doors {
                self.mailboxes.leave(door, out, |mailbox| mailbox.questions.push(question.clone()));
            }
        }
        if std::mem::take(&mut self.asked.users_changed) {
            for door in (0..self.mailboxes.boxes.len()).filter(|door| *door != self.number) {
                self.mailboxes.leave(door, out, |_| {});
            }
        }
        self.note_users();
        if std::mem::take(&mut self.asked.reset) {
            self.mailboxes.reset_statistics();
            self.take_info();
        }
        for (name, value) in std::mem::take(&mut self.asked.settings) {
            let spike_ms = self.shared.settings.spike_ms().unwrap_or_default();
            self.mailboxes.spike_ms.store(spike_ms, Ordering::Relaxed);
            for door in (0..self.mailboxes.boxes.len()).filter(|door| *door != self.number) {
                self.mailboxes.leave(door, out, |mailbox| mailbox.settings.push((name, value.clone())));
            }
        }
        self.dispatcher.flush(&mut self.gateway, self.now, |to, message| out.send(to, message));
        self.look_for_lost(out);
    }

    fn set_wait_timer(&self, out: &mut Outbox<M>) {
        if let Some(((due, _), ())) = self.waits.first_key_value() {
            out.set_timer(WAITS, due.since(self.shared.elapsed));
        }
    }

    /// Answers those that have waited long enough.
    fn end_waits(&mut self, out: &mut Outbox<M>) {
        let mut reply = Vec::new();
        Writer(&mut reply).ok();
        while let Some(entry) = self.waits.first_entry()
            && entry.key().0 <= self.shared.elapsed
        {
            let ((_, ticket), ()) = entry.remove_entry();
            self.answer(ticket, &reply);
        }
        self.set_wait_timer(out);
    }

    /// Answers what has been done with the file of users. Who is not among those that were read any more hears that first.
    fn take_users_file(&mut self) {
        let done = self.users_file.as_mut().map(Desk::take).unwrap_or_default();
        for (ticket, done) in done {
            let done = match done {
                Done::Loaded(users) => users.map(|users| {
                    self.shared.access.replace(users);
                    self.asked.users_changed = true;
                }),
                Done::Saved(done) => done,
            };
            self.answer(ticket, &UsersFileError::reply(done));
        }
    }

    /// Has the sessions take the users as they are, if they have changed.
    fn note_users(&mut self) {
        let version = self.shared.access.version();
        if version == self.users_version {
            return;
        }
        self.users_version = version;
        for slot in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[slot].connection else { continue };
            connection.session.note_users(&self.shared);
            if connection.session.fate() == Fate::Close {
                Self::touch(&mut self.touched, slot as u32, connection);
            }
        }
    }

    fn take_message(&mut self, from: NodeId, now: Now, message: Incoming<M>, out: &mut Outbox<M>) {
        match message {
            Incoming::Front(Front::Outcomes(batch)) => {
                if batch.is_empty() {
                    self.look_in_box(out);
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
        self.look_for_lost(out);
        self.dispatcher.retry(&mut self.gateway, |to, message| out.send(to, message));
        self.look_for_lost(out);
    }

    /// As long as something waits for what may never come, the clock is looked at.
    fn look_for_lost(&mut self, out: &mut Outbox<M>) {
        if !self.is_looking && (self.is_stopping || self.dispatcher.waits()) {
            self.is_looking = true;
            out.set_timer(PATIENCE, LOOK_FOR_LOST);
        }
    }

    fn give_up(&mut self, owed: Owed) {
        let Self { gateway, connections, shared, asked, touched, now, .. } = self;
        gateway.give_up(owed, |gateway, finished| {
            let mut cx = Context { gateway, shared, control: asked, now: *now };
            Self::tell(connections, touched, (&finished, None), &mut cx);
        });
    }

    /// Gives up what has been waited for too long, and turns away what was held as long: that was never sequenced. A node
    /// that stops gives up at once what nobody can answer because a partition is gone.
    fn lose_patience(&mut self) {
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
            let Self { gateway, connections, shared, asked, touched, now, .. } = self;
            gateway.abandon(|gateway, finished| {
                let mut cx = Context { gateway, shared, control: asked, now: *now };
                Self::tell(connections, touched, (&finished, None), &mut cx);
            });
        }
    }

    /// Writes what a connection is owed and closes it if it is over.
    fn send_output(&mut self, slot: u32) {
        let Some(connection) = self.connections.get_mut(slot as usize).and_then(|s| s.connection.as_mut())
        else {
            return;
        };
        connection.is_touched = false;
        let mut sent = 0;
        while !connection.session.output().is_empty() {
            if sent >= SENT_AT_ONCE {
                // Its socket takes more, so no event will say so.
                Self::touch(&mut self.touched, slot, connection);
                break;
            }
            match connection.socket.write(connection.session.output()) {
                Ok(n) => {
                    sent += n;
                    connection.session.sent(n);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    connection.session.kill();
                    break;
                }
            }
        }
        self.output_bytes += sent as u64;
        // In TLS what was taken may not have left.
        if connection.socket.has_pending() && connection.socket.flush().is_err() {
            connection.session.kill();
        }
        let is_leaving = connection.socket.has_pending() && !connection.session.is_killed();
        connection.session.settle(&self.shared);
        if connection.session.fate() == Fate::Close && !is_leaving {
            self.close(slot);
        } else if connection.session.is_waiting() {
            if !std::mem::replace(&mut connection.is_in_line, true) {
                self.waiting.push(slot);
            }
        } else if connection.session.wants_input(&self.shared)
            && (connection.readable || (connection.stopped && !connection.input.is_empty()))
        {
            self.again.push(slot);
        }
    }

    fn close(&mut self, slot: u32) {
        let place = &mut self.connections[slot as usize];
        let Some(mut connection) = place.connection.take() else { return };
        connection.session.release(&mut self.gateway);
        connection.session.close(&self.shared);
        place.generation = place.generation.wrapping_add(1);
        self.vacant.push(slot);
        self.mailboxes.open.fetch_sub(1, Ordering::Relaxed);
        if connection.socket.is_tls() {
            connection.socket.close();
        }
        if let Some(registry) = &self.registry {
            // Dropping the socket takes it out of the poll anyway.
            let _ = registry.deregister(connection.socket.socket_mut());
        }
    }
}

impl<M> std::fmt::Debug for Door<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("number", &self.number).finish_non_exhaustive()
    }
}

impl<M: Message> Role for Door<M> {
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        self.tell_time(now);
        match event {
            Event::Message { from, message } => self.take_message(from.node, now, message.incoming(), out),
            Event::Start => {
                out.set_timer(IDLE, LOOK_FOR_IDLE);
                if self.number == 0 {
                    out.set_timer(MEMORY, LOOK_AT_MEMORY);
                }
            }
            Event::Timer(WAITS) => {
                self.end_waits(out);
                self.pass_on(out);
            }
            Event::Timer(MEMORY) => {
                self.look_at_memory(out);
                out.set_timer(MEMORY, LOOK_AT_MEMORY);
            }
            Event::Timer(ROOM) => self.awaits_room = false,
            Event::Timer(PATIENCE) => {
                self.is_looking = false;
                self.lose_patience();
                self.pass_on(out);
                self.look_for_lost(out);
            }
            Event::Timer(_) => {
                self.close_idle();
                self.asked.notices.tick();
                out.set_timer(IDLE, LOOK_FOR_IDLE);
            }
            Event::Disk(_) | Event::Work(_) | Event::Stop => {}
        }
    }

    fn name(&self) -> &'static str {
        "front"
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let open = self.connections.len() - self.vacant.len();
        report("ordain_front_connections", open as f64);
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

impl<M: Message> Edge for Door<M> {
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
        self.registry = Some(registry);
        self.tokens = Some(tokens);
        Ok(())
    }

    fn ready(&mut self, event: &Readiness, now: Now, out: &mut Outbox<M>) {
        self.tell_time(now);
        let Some(tokens) = self.tokens else { return };
        match tokens.number(event.token()) {
            LISTENER => self.accept(false, out),
            TLS_LISTENER => self.accept(true, out),
            USERS_FILE => self.take_users_file(),
            number => {
                let slot = (number - FIRST_CONNECTION) as u32;
                let Some(connection) = self.connections[slot as usize].connection.as_mut() else { return };
                if event.is_readable() || event.is_read_closed() || event.is_error() {
                    connection.readable = true;
                    connection.closing |= event.is_read_closed() || event.is_error();
                    self.take_input(slot);
                } else {
                    Self::touch(&mut self.touched, slot, connection);
                }
            }
        }
    }

    fn turn(&mut self, now: Now, out: &mut Outbox<M>) -> Turn {
        self.tell_time(now);
        for slot in std::mem::take(&mut self.again) {
            self.take_input(slot);
        }
        self.look_for_room();
        let version = self.mailboxes.info_version.load(Ordering::Acquire);
        if version != self.informed {
            self.informed = version;
            self.take_info();
        }
        self.pass_on(out);
        if self.again.is_empty() { Turn::Idle } else { Turn::Again }
    }

    fn flush(&mut self, now: Now, out: &mut Outbox<M>) {
        if let Some(since) = self.answered_since.take() {
            self.reply_times.record_time(now.elapsed.since(since));
        }
        for slot in std::mem::take(&mut self.touched) {
            self.send_output(slot);
        }
        self.make_room();
        if !self.waiting.is_empty() && !self.awaits_room {
            self.awaits_room = true;
            out.set_timer(ROOM, LOOK_FOR_ROOM);
        }
        if !self.again.is_empty() || !self.touched.is_empty() {
            // Room was made for commands that have arrived already, or a socket takes more: no event will say so, so the door
            // knocks at itself.
            out.send(self.mailboxes.places[self.number], Front::Outcomes(OutcomeBatch::default()));
        }
    }

    fn stop(&mut self, now: Now, out: &mut Outbox<M>) {
        self.tell_time(now);
        self.is_stopping = true;
        self.look_for_lost(out);
        for mut listener in [self.listener.take(), self.tls_listener.take()].into_iter().flatten() {
            if let Some(registry) = &self.registry {
                // It is closed next.
                let _ = registry.deregister(&mut listener);
            }
        }
        for slot in 0..self.connections.len() as u32 {
            if let Some(connection) = &mut self.connections[slot as usize].connection {
                connection.session.drain();
                Self::touch(&mut self.touched, slot, connection);
            }
        }
    }

    fn drained(&self) -> bool {
        self.connections.len() == self.vacant.len()
    }
}
