//! The product's connection server as a role of a simulated node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ordain_family::Message;
use ordain_front::{ConnectionServer, Ends, Host, HostEvent, UsersFileAction};
use ordain_gateway::Ticket;
use ordain_model::Random;
use ordain_role::{Event, Now, Outbox, Role};

use super::wire::VirtualSocket;

/// The reply to a client for which there is no place.
const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";

/// What a connection server has of the simulator: its connections, and random bytes from the seed.
#[derive(Debug)]
pub struct VirtualHost {
    /// The role of the server.
    role: u16,
    sockets: BTreeMap<u32, VirtualSocket>,
    random: Random,
}

impl VirtualHost {
    /// The host of the server of a role, without connections.
    pub(crate) const fn new(role: u16, random: Random) -> VirtualHost {
        VirtualHost { role, sockets: BTreeMap::new(), random }
    }
}

impl Host for VirtualHost {
    type Socket = VirtualSocket;
    type Accepted = (VirtualSocket, Ends);

    fn open(&mut self, (socket, ends): (VirtualSocket, Ends), number: u32) -> Option<(VirtualSocket, Ends)> {
        socket.served_by(self.role);
        self.sockets.insert(number, socket.clone());
        Some((socket, ends))
    }

    fn close(&mut self, socket: VirtualSocket) {
        socket.close();
        self.sockets.retain(|_, open| !open.is(&socket));
    }

    fn ask_users_file(&mut self, _: UsersFileAction, _: Ticket) -> bool {
        false
    }

    fn random(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        bytes.iter_mut().for_each(|byte| *byte = self.random.bits() as u8);
        Ok(())
    }

    fn note(&mut self, _: HostEvent<'_>) {}
}

/// What the driver and a connection server know of each other.
#[derive(Debug, Default)]
pub(crate) struct Port {
    /// Connections that clients have made and the server has not accepted.
    pub(crate) accepted: Vec<(VirtualSocket, Ends)>,
    /// A wake-up for news of sockets is on its way.
    pub(crate) is_woken: bool,
    /// The replies that the server's sessions owe, or hold.
    pub(crate) owed: usize,
}

/// A port that both sides hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedPort(Arc<Mutex<Port>>);

impl SharedPort {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Port> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection server with the turns of an event loop of its own: for each event it looks at its sockets, handles the event,
/// goes on with what is left, and writes.
#[derive(Debug)]
pub(crate) struct ServerRole<M> {
    server: ConnectionServer<M, VirtualHost>,
    port: SharedPort,
}

impl<M: Message> ServerRole<M> {
    pub(crate) const fn new(server: ConnectionServer<M, VirtualHost>, port: SharedPort) -> ServerRole<M> {
        ServerRole { server, port }
    }

    /// Accepts connections, and hears of what sockets have.
    fn serve_sockets(&mut self, out: &mut Outbox<M>) {
        let accepted = {
            let mut port = self.port.lock();
            port.is_woken = false;
            std::mem::take(&mut port.accepted)
        };
        for (socket, ends) in accepted {
            if self.server.admits() {
                self.server.share((socket, ends), out);
            } else {
                socket.refuse(TOO_MANY);
            }
        }
        let sockets = self.server.host().sockets.iter();
        let ready: Vec<_> =
            sockets.map(|(number, socket)| (*number, socket.wire().take_readiness())).collect();
        for (number, (is_readable, is_ending, is_writable)) in ready {
            if is_readable {
                self.server.readable(number, is_ending);
            } else if is_writable {
                self.server.writable(number);
            }
        }
    }
}

impl<M: Message> Role for ServerRole<M> {
    type Message = M;

    fn handle(&mut self, now: Now, event: Event<M>, out: &mut Outbox<M>) {
        self.server.note_time(now);
        self.serve_sockets(out);
        let stops = matches!(event, Event::Stop);
        self.server.handle(now, event, out);
        self.server.turn(now, out);
        if stops {
            self.server.stop(now, out);
        }
        self.server.flush(now, out);
        self.port.lock().owed = self.server.owed();
    }

    ordain_role::reports_of!(self => self.server);
}
