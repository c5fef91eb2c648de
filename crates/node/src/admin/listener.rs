//! The admin server's port: connections as they come, or in TLS, and what each may take.
//!
//! Handshakes go on beside each other, so that a client that is slow, or silent, keeps no other out; and there are only so many.
//! The number of connections is bounded, how long one may take over a request's head, how long that head may be, and how long
//! a connection lasts.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use ordain_runtime::Current;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// The time that a client has to agree on keys.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The most handshakes at one time; who comes beyond waits.
const HANDSHAKES: usize = 256;
/// How long nothing is accepted when the system has no room for it.
const PAUSE: Duration = Duration::from_millis(100);
/// The most connections at one time; those beyond it are closed.
const CONNECTIONS: usize = 256;
/// The time that a client has to send the head of a request, and how long a connection may lie idle.
const HEAD: Duration = Duration::from_secs(10);
/// The longest head of a request, bytes.
const HEAD_BYTES: usize = 16 << 10;
/// How long a connection lasts: then it is closed after the answer under way.
const LIFE: Duration = Duration::from_secs(120);
/// The time that that answer may take.
const LAST_ANSWER: Duration = Duration::from_secs(10);

/// A connection, whether it is in TLS or not.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// What is accepted: a connection and whose it is.
type Accepted = (Box<dyn Io>, Peer);

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
                Ok(Ok(stream)) => Some((Box::new(stream) as Box<dyn Io>, Peer(peer))),
                Ok(Err(error)) => {
                    tracing::debug!(%peer, %error, "TLS with a client of the admin server has failed");
                    None
                }
                Err(_) => None,
            }
        });
    }
}

/// The counts of the admin server's connections, for its metrics.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    open: AtomicUsize,
    refused: AtomicU64,
    late: AtomicU64,
}

impl Traffic {
    /// Connections that are open; that were closed because there were too many; that were closed because a client took too
    /// long.
    pub(super) fn counts(&self) -> (usize, u64, u64) {
        let at = Ordering::Relaxed;
        (self.open.load(at), self.refused.load(at), self.late.load(at))
    }
}

/// Serves what comes in at a port, for ever.
pub(super) async fn serve(mut port: Port, router: Router, traffic: Arc<Traffic>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            (io, Peer(peer)) = port.accept() => {
                if connections.len() >= CONNECTIONS {
                    traffic.refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let router = router.clone().layer(Extension(ConnectInfo(Peer(peer))));
                connections.spawn(attend(io, peer, router, traffic.clone()));
            }
        }
        traffic.open.store(connections.len(), Ordering::Relaxed);
    }
}

/// Answers the requests of one connection.
async fn attend(io: Box<dyn Io>, peer: SocketAddr, router: Router, traffic: Arc<Traffic>) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
    let connection = http.serve_connection(TokioIo::new(io), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = match timeout(LIFE, connection.as_mut()).await {
        Ok(ended) => Ok(ended),
        Err(_) => {
            connection.as_mut().graceful_shutdown();
            timeout(LAST_ANSWER, connection).await
        }
    };
    match ended {
        Ok(Err(error)) if !error.is_timeout() => {
            tracing::debug!(%peer, %error, "a connection of the admin server has failed");
        }
        Ok(Err(_)) | Err(_) => _ = traffic.late.fetch_add(1, Ordering::Relaxed),
        Ok(Ok(())) => {}
    }
}

impl Port {
    /// The next connection that is ready for requests.
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
                        None => return (Box::new(socket), Peer(peer)),
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
}

/// Tells whether an error is of the connection that was to be accepted, and not of all.
fn is_of_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// The address of a client of the admin server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::Instant;

    use super::*;

    /// Runs something in a time that passes when nothing is left to do.
    fn run<F: Future>(what: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(what)
    }

    /// A connection, attended to; and what its clients did.
    fn connection(buffer_bytes: usize) -> (DuplexStream, Arc<Traffic>) {
        let router = Router::new()
            .route("/", get(async |ConnectInfo(Peer(peer)): ConnectInfo<Peer>| peer.to_string()))
            .route("/large", get(async || "x".repeat(1 << 20)));
        let (client, server) = duplex(buffer_bytes);
        let (peer, traffic) = (SocketAddr::from(([127, 0, 0, 1], 1234)), Arc::new(Traffic::default()));
        let router = router.layer(Extension(ConnectInfo(Peer(peer))));
        tokio::spawn(attend(Box::new(server), peer, router, traffic.clone()));
        (client, traffic)
    }

    #[test]
    fn a_head_that_does_not_end_ends_the_connection() {
        run(async {
            let (mut client, traffic) = connection(1 << 16);
            let begun = Instant::now();
            client.write_all(b"GET / HTTP/1.1\r\nHost: ").await.unwrap();
            while client.write_all(b"x").await.is_ok() {
                sleep(HEAD / 4).await;
                assert!(begun.elapsed() < HEAD * 2, "a byte now and then keeps it open");
            }
            assert!(begun.elapsed() >= HEAD);
            assert_eq!(traffic.counts(), (0, 0, 1));
        });
    }

    #[test]
    fn a_connection_is_used_again_and_is_closed_when_it_lies_idle() {
        run(async {
            let (mut client, traffic) = connection(1 << 16);
            for _ in 0..2 {
                client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
                let mut answer = [0; 4096];
                let length = client.read(&mut answer).await.unwrap();
                let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
                assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("127.0.0.1:1234"), "{answer}");
                sleep(HEAD / 2).await;
            }
            let idle = Instant::now();
            assert_eq!(client.read(&mut [0; 16]).await.unwrap(), 0);
            assert!(idle.elapsed() <= HEAD);
            assert_eq!(traffic.counts().2, 1);
        });
    }

    #[test]
    fn a_head_that_is_too_long_is_refused() {
        run(async {
            let (mut client, _) = connection(1 << 16);
            let head = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(HEAD_BYTES));
            client.write_all(head.as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
        });
    }

    #[test]
    fn a_client_that_does_not_read_is_given_up_in_the_end() {
        run(async {
            let (mut client, traffic) = connection(1 << 10);
            let begun = Instant::now();
            client.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            while traffic.counts().2 == 0 {
                sleep(Duration::from_secs(1)).await;
                assert!(begun.elapsed() <= LIFE + LAST_ANSWER * 2, "it is waited for");
            }
            assert!(begun.elapsed() >= LIFE);
        });
    }

    #[test]
    fn connections_are_so_many_and_a_place_that_is_free_is_taken() {
        // Sockets have the machine's time.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (port, traffic) = (Port::new(listener, None), Arc::new(Traffic::default()));
            let router = Router::new().route("/", get(async || "served"));
            tokio::spawn(serve(port, router, traffic.clone()));
            let mut kept = Vec::new();
            for _ in 0..CONNECTIONS {
                kept.push(TcpStream::connect(address).await.unwrap());
            }
            let mut refused = TcpStream::connect(address).await.unwrap();
            let ended = refused.read(&mut [0; 16]).await;
            assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
            assert_eq!((traffic.counts().0, traffic.counts().1), (CONNECTIONS, 1));
            drop(kept.pop());
            while traffic.counts().0 == CONNECTIONS {
                tokio::task::yield_now().await;
            }
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with("served"), "{answer}");
        });
    }
}
