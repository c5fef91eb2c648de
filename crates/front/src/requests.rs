//! What sessions ask of their node while they are called, and how it is answered: by other event loops, by the thread
//! of the users' file, after some time.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ordain_family::Message;
use ordain_gateway::{Finished, Path, Ticket};
use ordain_model::{Micros, OutcomeStatus, Writer};
use ordain_resp::{ConnectionId, Context, Control, ControlRequest, Fate, Notice, UsersFileError};
use ordain_role::Outbox;

use crate::host::{Event, Host, Socket as _, UsersFileAction, UsersFileDone};
use crate::mailboxes::{ClientQuery, Mailbox, lock};
use crate::server::{ConnectionServer, IDLE_PERIOD, TLS_HANDSHAKE, WAITS};

/// Requests of sessions to their node that are not passed on yet.
#[derive(Debug)]
pub(crate) struct SessionRequests<H> {
    pub(crate) host: H,
    requests: Vec<(Ticket, ControlRequest)>,
    settings: Vec<(&'static str, String)>,
    users_changed: bool,
    reset: bool,
}

impl<H> SessionRequests<H> {
    /// No requests yet, to be carried out with what the host has.
    pub(crate) const fn new(host: H) -> SessionRequests<H> {
        SessionRequests {
            host,
            requests: Vec::new(),
            settings: Vec::new(),
            users_changed: false,
            reset: false,
        }
    }
}

impl<H: Host> Control for SessionRequests<H> {
    fn request(&mut self, ticket: Ticket, request: ControlRequest) {
        self.requests.push((ticket, request));
    }

    fn setting_changed(&mut self, name: &'static str, value: &str) {
        self.settings.push((name, value.to_owned()));
    }

    fn reset_statistics(&mut self) {
        self.reset = true;
    }

    fn notice(&mut self, notice: Notice<'_>) {
        self.host.note(Event::Notice(notice));
    }

    fn users_changed(&mut self) {
        self.users_changed = true;
    }

    fn random(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        self.host.random(bytes)
    }
}

impl<M: Message, H: Host> ConnectionServer<M, H> {
    /// Passes on what sessions have asked for, and what the gateway has for other roles.
    pub(crate) fn pass_on(&mut self, out: &mut Outbox<M>) {
        for (ticket, request) in std::mem::take(&mut self.requests.requests) {
            match request {
                ControlRequest::Wait(time) => {
                    self.waits.insert((self.shared.elapsed.plus(time), ticket));
                    self.set_wait_timer(out);
                }
                ControlRequest::LoadUsers => self.ask_users_file(UsersFileAction::Load, ticket),
                ControlRequest::SaveUsers => self.ask_users_file(UsersFileAction::Save, ticket),
                ControlRequest::ListClients(_) | ControlRequest::KillClients(_) => {
                    let servers = self.mailboxes.count();
                    let query = Arc::new(ClientQuery {
                        request,
                        ticket,
                        asker: self.number,
                        left: AtomicUsize::new(servers),
                        killed: AtomicU64::new(0),
                        lines: Mutex::default(),
                    });
                    for server in 0..servers {
                        self.mailboxes.send(server, out, |mailbox| mailbox.queries.push(query.clone()));
                    }
                }
            }
        }
        if std::mem::take(&mut self.requests.users_changed) {
            self.mailboxes.send_to_others(self.number, out, |_| {});
        }
        self.note_users();
        if std::mem::take(&mut self.requests.reset) {
            self.mailboxes.reset_statistics();
            self.take_info();
        }
        for (name, value) in std::mem::take(&mut self.requests.settings) {
            let spike_ms = self.shared.settings.spike_ms().unwrap_or_default();
            self.mailboxes.spike_ms.store(spike_ms, Ordering::Relaxed);
            let put = |mailbox: &mut Mailbox<H::Accepted>| mailbox.settings.push((name, value.clone()));
            self.mailboxes.send_to_others(self.number, out, put);
        }
        self.dispatcher.flush(&mut self.gateway, self.now, |to, message| out.send(to, message));
        self.watch_for_lost(out);
    }

    /// Takes what other connection servers have put into this one's mailbox.
    pub(crate) fn take_mail(&mut self, out: &mut Outbox<M>) {
        let Mailbox { connections, queries, answers, settings } = self.mailboxes.take(self.number);
        for (name, value) in settings {
            // The server that sent it has checked it.
            let _ = self.shared.settings.set(name, &value);
        }
        connections.into_iter().for_each(|accepted| self.serve(accepted));
        queries.iter().for_each(|query| self.add_to(query, out));
        answers.iter().for_each(|query| self.answer(query.ticket, &query.reply()));
    }

    /// Adds this server's part to a query; the last server to do so sends it back.
    fn add_to(&mut self, query: &Arc<ClientQuery>, out: &mut Outbox<M>) {
        let now = self.now;
        self.connections.touch_if(|connection| {
            let session = &mut connection.session;
            match &query.request {
                ControlRequest::ListClients(filter) if filter.matches(session) => {
                    let mut line = String::new();
                    session.describe(now, &mut line);
                    lock(&query.lines).push((session.client(), line));
                    false
                }
                ControlRequest::KillClients(filter) if filter.matches(session) => {
                    query.killed.fetch_add(1, Ordering::Relaxed);
                    if ConnectionId::of(query.ticket) == session.id() && query.asker == self.number {
                        session.drain();
                    } else {
                        session.kill();
                    }
                    true
                }
                _ => false,
            }
        });
        if query.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.mailboxes.send(query.asker, out, |mailbox| mailbox.answers.push(query.clone()));
        }
    }

    /// Gives a session the answer to its request to the node.
    fn answer(&mut self, ticket: Ticket, reply: &[u8]) {
        let finished =
            Finished { reply, ..Finished::nowhere(ticket, OutcomeStatus::Committed, Path::Snapshot) };
        let Self { gateway, connections, shared, requests, now, .. } = self;
        connections.finish(&finished, None, &mut Context { gateway, shared, control: requests, now: *now });
    }

    fn set_wait_timer(&self, out: &mut Outbox<M>) {
        if let Some((due, _)) = self.waits.first() {
            out.set_timer(WAITS, due.since(self.shared.elapsed));
        }
    }

    /// Answers the requests to wait whose time is over.
    pub(crate) fn end_waits(&mut self, out: &mut Outbox<M>) {
        let mut reply = Vec::new();
        Writer(&mut reply).ok();
        while let Some((due, ticket)) = self.waits.first().copied()
            && due <= self.shared.elapsed
        {
            self.waits.pop_first();
            self.answer(ticket, &reply);
        }
        self.set_wait_timer(out);
    }

    fn ask_users_file(&mut self, action: UsersFileAction, ticket: Ticket) {
        if !self.requests.host.ask_users_file(action, ticket) {
            self.answer(ticket, &UsersFileError::reply(Err(UsersFileError::NoFile)));
        }
    }

    /// Answers what has been done with the file of users.
    pub fn users_file_done(&mut self, jobs: impl IntoIterator<Item = (Ticket, UsersFileDone)>) {
        for (ticket, done) in jobs {
            let done = match done {
                UsersFileDone::Loaded(users) => users.map(|users| {
                    self.shared.access.replace(users);
                    self.requests.users_changed = true;
                }),
                UsersFileDone::Saved(done) => done,
            };
            self.answer(ticket, &UsersFileError::reply(done));
        }
    }

    /// Has the sessions take the users as they are, if they have changed.
    fn note_users(&mut self) {
        let version = self.shared.access.version();
        if std::mem::replace(&mut self.users_version, version) != version {
            self.connections.touch_if(|connection| {
                connection.session.note_users(&self.shared);
                connection.session.fate() == Fate::Close
            });
        }
    }

    /// Takes over the contents of INFO.
    pub(crate) fn take_info(&mut self) {
        self.shared.node = self.mailboxes.info();
        self.shared.node.memory_clients_bytes = self.shared.memory.held();
    }

    /// Closes connections that have been silent for longer than the setting `timeout` allows, or have not agreed on keys in
    /// time.
    pub(crate) fn close_idle(&mut self) {
        let limit = Micros(self.shared.settings.number("timeout") * 1_000_000);
        let (now, elapsed) = (self.now, self.shared.elapsed);
        self.connections.touch_if(|connection| {
            let mut is_over =
                connection.socket.is_handshaking() && elapsed.since(connection.since) > TLS_HANDSHAKE;
            let session = &mut connection.session;
            let idle = now.since(session.active());
            if idle > IDLE_PERIOD {
                // Ten thousand that have nothing to do should not hold a buffer each.
                session.trim();
                connection.input.shrink_to_fit();
            }
            is_over |= limit > Micros(0) && session.pending() == 0 && idle > limit;
            if is_over {
                session.kill();
            }
            is_over
        });
    }
}
