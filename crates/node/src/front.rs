//! Clients at a node: TCP and TLS around the connection server of an event loop.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use mio::event::Event as Readiness;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};
use ordain_family::Message;
use ordain_front::{Ends, Host, HostEvent, Socket, UsersFileAction};
use ordain_gateway::Ticket;
use ordain_role::{Event, Now, Outbox, Role};
use ordain_runtime::{Current, Edge, Stream, Tokens, Turn};
use rustls::ServerConfig;

use crate::notices::Notices;
use crate::users_file::Desk;

/// The token number of the listening socket, and of the one for TLS.
const LISTENER: usize = 0;
const TLS_LISTENER: usize = 1;
/// The token number by which the thread of the users' file wakes this loop.
const USERS_FILE: usize = 2;
/// The token number of the first connection.
const FIRST_CONNECTION: usize = 3;

/// An accepted connection, and whether it is to be in TLS.
pub(crate) type Accepted = (TcpStream, bool);
/// The mailboxes of a node's connection servers.
pub(crate) type Mailboxes = ordain_front::Mailboxes<Accepted>;
/// The connection server of an event loop.
pub(crate) type ConnectionServer<M> = ordain_front::ConnectionServer<M, Process>;

/// A connection over TCP, in TLS or not.
#[derive(Debug)]
pub(crate) struct ClientSocket(Stream);

impl Read for ClientSocket {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for ClientSocket {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Socket for ClientSocket {
    #[inline]
    fn has_pending(&self) -> bool {
        self.0.has_pending()
    }

    #[inline]
    fn keeps_input(&self) -> bool {
        self.0.is_tls()
    }

    fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }
}

/// What a connection server has of the process: sockets, the file of users, random bytes, the log for operators.
#[derive(Debug, Default)]
pub(crate) struct Process {
    poll: Option<(Registry, Tokens)>,
    tls: Option<Current<ServerConfig>>,
    /// Does ACL LOAD and ACL SAVE, if there is a file for that.
    users_file: Option<Desk>,
    notices: Notices,
}

impl Process {
    /// The part of a process for one event loop. TLS begins with what is configured then.
    pub(crate) fn new(tls: Option<Current<ServerConfig>>, users_file: Option<Desk>) -> Process {
        Process { poll: None, tls, users_file, notices: Notices::default() }
    }
}

impl Host for Process {
    type Socket = ClientSocket;
    type Accepted = Accepted;

    fn open(&mut self, (socket, is_tls): Accepted, number: u32) -> Option<(ClientSocket, Ends)> {
        let (registry, tokens) = self.poll.as_ref()?;
        let stream = match self.tls.as_ref().filter(|_| is_tls) {
            None => Ok(Stream::Plain(socket)),
            Some(config) => Stream::accepted(socket, config.get()),
        };
        let mut stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "TLS with a client cannot begin");
                return None;
            }
        };
        let socket = stream.socket_mut();
        // Without it replies to a client that waits for each would be late; failing to set it costs only that.
        let _ = socket.set_nodelay(true);
        let token = tokens.token(number as usize + FIRST_CONNECTION);
        if let Err(error) = registry.register(socket, token, Interest::READABLE | Interest::WRITABLE) {
            tracing::warn!(%error, "cannot watch a connection");
            return None;
        }
        let name =
            |address: io::Result<SocketAddr>| address.map_or_else(|_| "?".to_owned(), |a| a.to_string());
        let (peer, local) = (name(socket.peer_addr()), name(socket.local_addr()));
        Some((ClientSocket(stream), Ends { peer, local }))
    }

    fn close(&mut self, ClientSocket(mut stream): ClientSocket) {
        if stream.is_tls() {
            stream.close();
        }
        if let Some((registry, _)) = &self.poll {
            // Dropping the socket takes it out of the poll anyway.
            let _ = registry.deregister(stream.socket_mut());
        }
    }

    fn ask_users_file(&mut self, action: UsersFileAction, ticket: Ticket) -> bool {
        self.users_file.iter().for_each(|desk| desk.ask(action, ticket));
        self.users_file.is_some()
    }

    fn random(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        bytes.iter_mut().for_each(|byte| *byte = rand::random());
        Ok(())
    }

    fn note(&mut self, event: HostEvent<'_>) {
        match event {
            HostEvent::Notice(notice) => self.notices.note(notice),
            HostEvent::Second => self.notices.tick(),
            HostEvent::ClosedLargest { peer, bytes, all } => tracing::warn!(
                peer,
                bytes,
                all,
                "closed: the connections together hold more than maxmemory-clients, and this one most"
            ),
        }
    }
}

/// The edge of an event loop where clients connect. The first loop's also listens, and shares accepted connections out to
/// all.
#[derive(Debug)]
pub(crate) struct ClientEdge<M> {
    server: ConnectionServer<M>,
    listener: Option<TcpListener>,
    tls_listener: Option<TcpListener>,
}

impl<M: Message> ClientEdge<M> {
    /// The edge around a server, with the sockets that it listens on: for plain connections, and for those in TLS.
    pub(crate) fn new(
        server: ConnectionServer<M>,
        listener: Option<std::net::TcpListener>,
        tls_listener: Option<std::net::TcpListener>,
    ) -> Self {
        let [listener, tls_listener] = [listener, tls_listener].map(|it| it.map(TcpListener::from_std));
        ClientEdge { server, listener, tls_listener }
    }

    fn accept(&mut self, is_tls: bool, out: &mut Outbox<M>) {
        while let Some(listener) = if is_tls { &self.tls_listener } else { &self.listener } {
            match listener.accept() {
                Ok((socket, _)) if self.server.admits() => self.server.share((socket, is_tls), out),
                Ok((mut socket, _)) => {
                    // Best effort: the client may be gone already. In TLS nothing has been agreed on that it could read.
                    if !is_tls {
                        let _ = socket.write(b"-ERR max number of clients reached\r\n");
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
}

impl<M: Message> Role for ClientEdge<M> {
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        self.server.handle(now, event, out);
    }

    ordain_role::reports_of!(self => self.server);
}

impl<M: Message> Edge for ClientEdge<M> {
    fn register(&mut self, registry: Registry, tokens: Tokens) -> io::Result<()> {
        if let Some(listener) = &mut self.listener {
            registry.register(listener, tokens.token(LISTENER), Interest::READABLE)?;
        }
        if let Some(listener) = &mut self.tls_listener {
            registry.register(listener, tokens.token(TLS_LISTENER), Interest::READABLE)?;
        }
        let process = self.server.host_mut();
        if let Some(desk) = &mut process.users_file {
            registry.register(&mut desk.wake, tokens.token(USERS_FILE), Interest::READABLE)?;
        }
        process.poll = Some((registry, tokens));
        Ok(())
    }

    fn ready(&mut self, event: &Readiness, now: Now, out: &mut Outbox<M>) {
        self.server.note_time(now);
        let Some((_, tokens)) = &self.server.host().poll else { return };
        match tokens.number(event.token()) {
            LISTENER => self.accept(false, out),
            TLS_LISTENER => self.accept(true, out),
            USERS_FILE => {
                let done = self.server.host_mut().users_file.as_mut().map(Desk::take);
                self.server.users_file_done(done.unwrap_or_default());
            }
            number => {
                let number = (number - FIRST_CONNECTION) as u32;
                let is_ending = event.is_read_closed() || event.is_error();
                if event.is_readable() || is_ending {
                    self.server.readable(number, is_ending);
                } else {
                    self.server.writable(number);
                }
            }
        }
    }

    fn turn(&mut self, now: Now, out: &mut Outbox<M>) -> Turn {
        if self.server.turn(now, out) { Turn::Again } else { Turn::Idle }
    }

    fn flush(&mut self, now: Now, out: &mut Outbox<M>) {
        self.server.flush(now, out);
    }

    fn stop(&mut self, now: Now, out: &mut Outbox<M>) {
        self.server.stop(now, out);
        for mut listener in [self.listener.take(), self.tls_listener.take()].into_iter().flatten() {
            if let Some((registry, _)) = &self.server.host().poll {
                // It is closed next.
                let _ = registry.deregister(&mut listener);
            }
        }
    }

    fn drained(&self) -> bool {
        self.server.drained()
    }
}
