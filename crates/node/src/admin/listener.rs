//! The admin server's port: connections as they come, or in TLS.
//!
//! Handshakes go on beside each other, so that nobody who is slow, or silent, keeps others out; and there are only so many.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use ordain_runtime::Current;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// How long a client has to agree on keys.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The most handshakes at one time; who comes beyond waits.
const HANDSHAKES: usize = 256;
/// How long nothing is accepted when the system has no room for it.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection, whether it is in TLS or not.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// What is accepted: a connection and whose it is.
type Accepted = (Box<dyn Io>, SocketAddr);

/// The port of the admin server.
pub(super) struct Port {
    listener: TcpListener,
    tls: Option<Current<ServerConfig>>,
    handshakes: JoinSet<Option<Accepted>>,
}

impl Port {
    /// A listening port, in TLS if there is a configuration for that.
    pub(super) fn new(listener: TcpListener, tls: Option<Current<ServerConfig>>) -> Port {
        Port { listener, tls, handshakes: JoinSet::new() }
    }

    fn shake_hands(&mut self, socket: TcpStream, peer: SocketAddr, tls: &Current<ServerConfig>) {
        let acceptor = TlsAcceptor::from(tls.get());
        self.handshakes.spawn(async move {
            match timeout(HANDSHAKE, acceptor.accept(socket)).await {
                Ok(Ok(stream)) => Some((Box::new(stream) as Box<dyn Io>, peer)),
                Ok(Err(error)) => {
                    tracing::debug!(%peer, %error, "TLS with a client of the admin server has failed");
                    None
                }
                Err(_) => None,
            }
        });
    }
}

impl Listener for Port {
    type Io = Box<dyn Io>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> Accepted {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.join_next(), if !self.handshakes.is_empty() => {
                    if let Ok(Some(accepted)) = done {
                        return accepted;
                    }
                }
                accepted = self.listener.accept(), if self.handshakes.len() < HANDSHAKES => match accepted {
                    Ok((socket, peer)) => match self.tls.clone() {
                        None => return (Box::new(socket), peer),
                        Some(tls) => self.shake_hands(socket, peer, &tls),
                    },
                    Err(error) if is_of_one(&error) => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection of an admin client");
                        sleep(PAUSE).await;
                    }
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Whether an error is of the connection that was to be accepted, and not of all.
fn is_of_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// The address of a client of the admin server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Connected<IncomingStream<'_, Port>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Port>) -> Peer {
        Peer(*stream.remote_addr())
    }
}
