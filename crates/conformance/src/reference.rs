//! The reference: sessions and a gateway without a socket, and the reference executor as the engine behind them.

use std::fmt;
use std::sync::Arc;

use ordain_engines::registry::Abilities;
use ordain_gateway::{
    Backend, Begin, Finished, Gateway, Ordered, Path, Services, Ticket, Tokens, Transaction,
};
use ordain_model::{
    ArgsBuilder, Batch, Call, Chunk, ChunkNo, Db, Epoch, Fragment, GatewayId, Gsn, Isolation, KeptReply,
    Layout, Micros, OutcomeBatch, OutcomeStatus, PartitionId, Placed, Position, Reads, ReferenceExecutor,
    Registry, Stamp, View, Writer, system,
};
use ordain_resp::client::command;
use ordain_resp::memory::Memory;
use ordain_resp::{
    Access, ClientId, ConnectionId, Context, Control, ControlRequest, Fate, Notice, Session, Shared, Users,
    UsersFileError,
};

use crate::natives;
use crate::subject::{Subject, Traits, Weather, note_used, used};

/// Wall-clock time at the start of every test: later than the simulator's, in which a cluster has come up by then.
pub const START: Micros = ordain_sim::START_WALL.plus(Micros::from_millis(1_000_000));

/// The procedures of every subject: those of the system, the Redis commands, and the suite's own.
pub fn procedures() -> Registry {
    let mut registry = Registry::default();
    system::register(&mut registry);
    ordain_commands::register(&mut registry);
    natives::register(&mut registry);
    registry
}

/// One end of a connection.
#[derive(Debug)]
pub struct Client {
    /// The connection's state machine.
    pub session: Session,
    /// Sent and not yet taken.
    input: Vec<u8>,
    /// Received and not yet looked at.
    pub output: Vec<u8>,
}

#[derive(Debug, Default)]
struct Node {
    requests: Vec<(Ticket, ControlRequest)>,
    settings: Vec<(&'static str, String)>,
    notices: Vec<String>,
    users_changed: usize,
    /// The ACL file.
    file: Option<Vec<u8>>,
}

impl Control for Node {
    fn request(&mut self, ticket: Ticket, request: ControlRequest) {
        self.requests.push((ticket, request));
    }

    fn setting_changed(&mut self, name: &'static str, value: &str) {
        self.settings.push((name, value.to_string()));
    }

    fn reset_statistics(&mut self) {}

    fn notice(&mut self, notice: Notice<'_>) {
        self.notices.push(format!("{notice:?}"));
    }

    fn users_changed(&mut self) {
        self.users_changed += 1;
    }

    fn random(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        bytes.fill(0xa5);
        Ok(())
    }
}

/// The server.
pub struct Server {
    /// The gateway of all connections.
    pub gateway: Gateway,
    /// What an event loop lends its sessions.
    pub shared: Shared,
    /// The connections.
    pub clients: Vec<Client>,
    /// The wall clock.
    pub now: Micros,
    /// How requests are answered.
    pub weather: Weather,
    /// The records, and what runs on them.
    pub state: ReferenceExecutor,
    /// Transactions that were run.
    pub transactions: usize,
    node: Node,
    epoch: Epoch,
    can: Abilities,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Server { now, clients, transactions, .. } = self;
        write!(f, "Server({now:?}, {} connections, {transactions} transactions)", clients.len())
    }
}

impl Server {
    /// A server with so many connections.
    pub fn new(clients: usize) -> Server {
        Server::placed(clients, &Layout::single(1))
    }

    /// A server with so many connections, whose records are placed as in a layout.
    pub fn placed(clients: usize, layout: &Layout) -> Server {
        let registry = Arc::new(procedures().placing(layout.placement().clone()));
        let (whole, place) = (Arc::new(layout.whole()), (0, PartitionId(0)));
        let gateway = Gateway::new(GatewayId(0), registry.clone(), whole, place, ChunkNo(0));
        let mut server = Server {
            gateway: gateway.without_others(),
            shared: Shared::default(),
            clients: Vec::new(),
            now: START,
            weather: Weather::Fair,
            state: ReferenceExecutor::new(registry),
            transactions: 0,
            node: Node::default(),
            epoch: Epoch(0),
            can: CAN,
        };
        server.shared.node.started = START;
        server.shared.memory = Arc::new(Memory::new(used, (0, 1), 1));
        (0..clients).for_each(|_| server.connect());
        server
    }

    /// A server without connections, whose engine has no service that not all engines have.
    pub fn without_services() -> Server {
        let Server { gateway, can, .. } = Server::new(0);
        let registry = gateway.registry().clone();
        let gateway = Gateway::alone(GatewayId(0), registry).with_backend(Arc::new(Bare));
        let Services { interactive, sessions, moves, checkpoints } = gateway.backend().services();
        let can = Abilities {
            is_interactive: interactive,
            has_sessions: sessions,
            moves_slots: moves,
            takes_checkpoints: checkpoints,
            ..can
        };
        Server { gateway, can, ..Server::new(0) }
    }

    /// Requires a password of the default user, and opens the connections anew.
    pub fn require_password(&mut self, password: &str) {
        self.set_users(&format!("user default on >{password} ~* &* +@all"));
    }

    /// Begins with these users, and with them as the ACL file. Connections are made anew.
    ///
    /// # Panics
    /// If the file is wrong.
    pub fn set_users(&mut self, file: &str) {
        self.node.file = Some(file.into());
        self.shared.access = Arc::new(Access::new(Users::parse(file.as_bytes()).expect("the file is right")));
        let clients = std::mem::take(&mut self.clients).len();
        (0..clients).for_each(|_| self.connect());
    }

    /// The ACL file.
    pub fn users_file(&mut self) -> &mut Option<Vec<u8>> {
        &mut self.node.file
    }

    /// Opens a connection.
    pub fn connect(&mut self) {
        let slot = self.clients.len() as u32;
        let peer = format!("127.0.0.1:{}", 50_000 + slot);
        let session = Session::new(
            ConnectionId::new(slot, 0),
            ClientId(u64::from(slot) + 1),
            (&peer, "127.0.0.1:6379"),
            self.now,
            &self.shared,
        );
        self.clients.push(Client { session, input: Vec::new(), output: Vec::new() });
    }

    /// Gives bytes to a connection, and lets it take what it wants of them.
    pub fn send(&mut self, client: usize, bytes: &[u8]) {
        self.clients[client].input.extend_from_slice(bytes);
        self.receive(client);
    }

    /// Sends words as an array.
    pub fn command(&mut self, client: usize, words: &[&[u8]]) {
        self.send(client, &command(words));
    }

    fn receive(&mut self, client: usize) {
        let Server { gateway, shared, clients, now, node, .. } = self;
        let client = &mut clients[client];
        let mut cx = Context { gateway, shared, control: node, now: *now };
        let received = client.session.receive(&client.input, &mut cx);
        client.input.drain(..received.consumed);
    }

    /// Runs what was submitted, and what follows from it, until everything is answered.
    pub fn settle(&mut self) {
        loop {
            let before = (self.transactions, self.node.requests.len());
            self.answer_requests();
            self.run_chunk();
            for client in 0..self.clients.len() {
                let Client { session, input, .. } = &self.clients[client];
                if session.wants_input(&self.shared) && (session.is_waiting() || !input.is_empty()) {
                    self.receive(client);
                }
            }
            let idle = self.gateway.outstanding() == 0 && self.node.requests.is_empty();
            if idle && before == (self.transactions, 0) {
                break;
            }
        }
        for client in &mut self.clients {
            while !client.session.output().is_empty() {
                client.output.extend_from_slice(client.session.output());
                let sent = client.session.output().len();
                client.session.sent(sent);
            }
        }
    }

    fn run_chunk(&mut self) {
        let departure = self.gateway.flush();
        let Some(chunk) = departure.as_ref().and_then(|departure| departure.chunk().cloned()) else { return };
        self.epoch = self.epoch.next();
        let batch = Batch {
            epoch: self.epoch,
            layout: 1,
            now: self.now.to_millis(),
            total: chunk.span(),
            chunks: vec![Placed::whole(0, chunk.clone())],
            ..Batch::default()
        };
        self.check_logged(&chunk);
        self.transactions += chunk.txns().len();
        let mut results: Vec<_> = match self.weather {
            Weather::Fair | Weather::Reversed => {
                let indexes = chunk.txns().iter().map(|txn| txn.index);
                let results = self.state.run(&batch).into_iter();
                indexes.zip(results).map(|(i, r)| (i, r.gsn, r.status, r.reply)).collect()
            }
            Weather::Busy | Weather::Refused => {
                let busy = self.weather == Weather::Busy;
                let status = if busy { OutcomeStatus::Busy } else { OutcomeStatus::Refused };
                chunk.txns().iter().map(|txn| (txn.index, Gsn::NONE, status, Vec::new())).collect()
            }
        };
        if self.weather == Weather::Reversed {
            results.reverse();
        }
        let mut outcomes = OutcomeBatch::new(GatewayId(0));
        for (index, gsn, status, reply) in results {
            outcomes.push(chunk.number, index, gsn, status, |out| out.extend_from_slice(&reply));
        }
        let (outcomes, mut finished) = (Arc::new(outcomes), Vec::new());
        self.gateway.take_outcomes(&outcomes, |f| {
            let kept = f.outcome.map(|outcome| KeptReply::new(&outcomes, outcome));
            finished.push((f.ticket, f.status, (f.stamp, f.token.clone()), f.reply.to_vec(), kept));
        });
        for (ticket, status, (stamp, token), reply, kept) in finished {
            let nowhere = Finished::nowhere(ticket, status, Path::Snapshot);
            let finished = Finished { stamp, token: &token, reply: &reply, ..nowhere };
            self.finish_kept(&finished, kept);
        }
    }

    /// Checks that the log's copy of a transaction is the same transaction, and that there is none if it only reads. Only of
    /// one that is alone in its chunk, as what is left out moves the places of the others.
    fn check_logged(&self, chunk: &Chunk) {
        let [txn] = chunk.txns() else { return };
        let logged =
            Chunk::rebuild(self.gateway.registry(), chunk.gateway, chunk.logged().to_vec(), Vec::new());
        let logged = logged.expect("a chunk can be read back");
        assert_eq!(logged.txns().is_empty(), txn.read_only, "the log holds what writes");
        for again in logged.txns() {
            assert_eq!(chunk.fragments(txn).len(), logged.fragments(again).len());
            for (a, b) in chunk.fragments(txn).iter().zip(logged.fragments(again)) {
                // Where inputs are listed also depends on requests that were refused before; what they are does not.
                let who = |f: &Fragment| (f.hash, f.key_at, f.procedure, f.code, f.access, f.db);
                let how =
                    |f: &Fragment| (f.abortable, f.silent, f.shipped, f.fed, f.carries, f.snapshot_readable);
                assert_eq!((who(a), how(a)), (who(b), how(b)));
                assert_eq!(chunk.plans().inputs_of(a), logged.plans().inputs_of(b));
            }
        }
    }

    /// Hands an answer to the session it is for.
    pub fn finish(&mut self, finished: &Finished<'_>) {
        self.finish_kept(finished, None);
    }

    fn finish_kept(&mut self, finished: &Finished<'_>, kept: Option<KeptReply>) {
        let Server { gateway, shared, clients, now, node, .. } = self;
        let slot = ConnectionId::of(finished.ticket).slot();
        if let Some(client) = clients.get_mut(slot) {
            let mut cx = Context { gateway, shared, control: node, now: *now };
            client.session.finished_kept(finished, kept, &mut cx);
        }
    }

    /// Does for the node what the node does.
    fn answer_requests(&mut self) {
        if std::mem::take(&mut self.node.users_changed) > 0 {
            self.clients.iter_mut().for_each(|client| client.session.note_users(&self.shared));
        }
        let mut has_loaded = false;
        for (ticket, request) in std::mem::take(&mut self.node.requests) {
            let asker = ConnectionId::of(ticket);
            let mut reply = Vec::new();
            match request {
                ControlRequest::ListClients(filter) => {
                    let mut lines = String::new();
                    let open = self.clients.iter().map(|c| &c.session).filter(|s| s.fate() == Fate::Open);
                    open.filter(|s| filter.matches(s)).for_each(|s| s.describe(self.now, &mut lines));
                    Writer(&mut reply).bulk(lines.as_bytes());
                }
                ControlRequest::KillClients(filter) => {
                    let mut killed = 0;
                    for session in
                        self.clients.iter_mut().map(|c| &mut c.session).filter(|s| filter.matches(s))
                    {
                        killed += 1;
                        if session.id() == asker { session.drain() } else { session.kill() }
                    }
                    Writer(&mut reply).int(killed);
                }
                ControlRequest::Wait(time) => {
                    self.now = self.now.plus(time);
                    Writer(&mut reply).ok();
                }
                ControlRequest::LoadUsers => {
                    let text = self.node.file.clone().ok_or(UsersFileError::NoFile);
                    let users = text.and_then(|text| Users::read(Ok(text)));
                    let done = users.map(|users| self.shared.access.replace(users));
                    has_loaded |= done.is_ok();
                    reply = UsersFileError::reply(done);
                }
                ControlRequest::SaveUsers => {
                    let text = self.shared.access.users(Users::file);
                    let file = self.node.file.as_mut().ok_or(UsersFileError::NoFile);
                    reply = UsersFileError::reply(file.map(|file| *file = text));
                }
            }
            let nowhere = Finished::nowhere(ticket, OutcomeStatus::Committed, Path::Snapshot);
            self.finish(&Finished { reply: &reply, ..nowhere });
        }
        if has_loaded {
            self.clients.iter_mut().for_each(|client| client.session.note_users(&self.shared));
        }
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Micros) {
        self.now = self.now.plus(time);
        self.shared.elapsed = self.shared.elapsed.plus(time);
    }

    /// What the node was to note in its log.
    pub fn notices(&self) -> &[String] {
        &self.node.notices
    }

    /// What CONFIG SET has told the node.
    pub fn settings(&self) -> &[(&'static str, String)] {
        &self.node.settings
    }

    /// What a client has received since it last looked, as text.
    pub fn take(&mut self, client: usize) -> String {
        let escaped = std::mem::take(&mut self.clients[client].output).escape_ascii().to_string();
        escaped.replace("\\r\\n", "\n").replace("\\'", "'").replace("\\\"", "\"")
    }

    /// Sends words, settles, and gives the reply.
    pub fn ask(&mut self, client: usize, words: &[&str]) -> String {
        let words: Vec<&[u8]> = words.iter().map(|w| w.as_bytes()).collect();
        self.command(client, &words);
        self.settle();
        self.take(client)
    }
}

/// The engine behind the reference can do all that a session may ask for.
const CAN: Abilities = Abilities {
    replication: &["none"],
    moves_slots: true,
    has_digests: true,
    takes_checkpoints: true,
    has_sessions: true,
    is_interactive: true,
    is_replayable: true,
    has_regions: false,
    shows_past: false,
};

/// Engines without any service that not all engines have.
#[derive(Debug)]
struct Bare;

impl Backend for Bare {
    fn services(&self) -> Services {
        Services::NONE
    }

    fn begin(&self, how: Begin) -> Box<dyn Transaction> {
        Ordered.begin(how)
    }

    fn tokens(&self) -> Tokens<'_> {
        Ordered.tokens()
    }

    fn run_of(&self, stamp: Stamp, index: u32) -> Option<Stamp> {
        Ordered.run_of(stamp, index)
    }

    fn keeps_order(&self) -> bool {
        Ordered.keeps_order()
    }
}

/// The ticket of requests that no connection has made.
const SWEEP: Ticket = Ticket(u64::MAX);

impl Subject for Server {
    fn traits(&self) -> Traits {
        let (reads, isolation) = (Reads::Ordered, Isolation::Serializable);
        Traits {
            is_reference: true,
            partitions: 1,
            reads,
            isolation,
            is_whole: true,
            is_direct: false,
            can: self.can,
        }
    }

    fn open(&mut self, _seat: usize) -> usize {
        self.connect();
        self.clients.len() - 1
    }

    fn send(&mut self, connection: usize, bytes: &[u8]) {
        Server::send(self, connection, bytes);
    }

    fn settle(&mut self) -> Result<(), String> {
        Server::settle(self);
        Ok(())
    }

    fn rest(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn take(&mut self, connection: usize) -> Vec<u8> {
        std::mem::take(&mut self.clients[connection].output)
    }

    fn is_closed(&self, connection: usize) -> bool {
        self.clients[connection].session.fate() == Fate::Close
    }

    fn close(&mut self, connection: usize) {
        let Server { gateway, clients, shared, .. } = self;
        let session = &mut clients[connection].session;
        session.kill();
        session.release(gateway);
        session.close(shared);
    }

    fn advance(&mut self, ms: u64) -> Result<(), String> {
        self.pass(Micros::from_millis(ms));
        Ok(())
    }

    fn sweep(&mut self) -> Result<(), String> {
        let call = Call::new(system::EXPIRE, Db(0));
        let all = Position::of_slot(0)..Position::END;
        let write = |args: &mut ArgsBuilder<'_>| system::expire_args(&all, args);
        self.gateway.submit_to(SWEEP, call, View::Ordered, write).map_err(|refusal| refusal.to_string())?;
        Server::settle(self);
        Ok(())
    }

    fn move_slots(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn set_used(&mut self, bytes: u64) -> Result<(), String> {
        note_used(bytes);
        Ok(())
    }

    fn set_weather(&mut self, weather: Weather) {
        self.weather = weather;
    }
}
