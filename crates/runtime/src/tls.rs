//! A TCP connection of an event loop that may be inside TLS.
//!
//! [`Stream`] reads and writes like a non-blocking socket in either case, so what uses it knows no TLS but for two things:
//! a short read does not mean that the socket is empty, and bytes that were taken for writing may still be in here until
//! [`Stream::flush`] has brought them to the socket, which is to be called whenever that turns writable. What is in here is
//! bounded: [`AHEAD`] bytes of what is to leave, and a record of what has come.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, PoisonError, RwLock};

use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

/// The number of bytes encrypted ahead of what the system takes.
const AHEAD: usize = 64 << 10;

/// A configuration of TLS that may be replaced: each connection begins with the one of its moment and keeps it.
pub struct Current<T>(Arc<RwLock<Arc<T>>>);

impl<T> Current<T> {
    /// The configuration as it is now.
    pub fn get(&self) -> Arc<T> {
        // Nothing panics while it is held.
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the configuration for connections that begin from now on.
    pub fn replace(&self, with: Arc<T>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = with;
    }
}

impl<T> From<Arc<T>> for Current<T> {
    fn from(first: Arc<T>) -> Current<T> {
        Current(Arc::new(RwLock::new(first)))
    }
}

impl<T> Clone for Current<T> {
    fn clone(&self) -> Current<T> {
        Current(self.0.clone())
    }
}

impl<T> fmt::Debug for Current<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Current(…)")
    }
}

/// A connection, in TLS or not.
pub enum Stream {
    /// As it is.
    Plain(TcpStream),
    /// In TLS.
    Tls(Box<Secured>),
}

/// A connection in TLS.
pub struct Secured {
    socket: TcpStream,
    tls: rustls::Connection,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("socket", self.socket()).field("tls", &self.is_tls()).finish()
    }
}

impl Stream {
    /// The side that was connected to.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn accepted(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Stream> {
        let tls = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Stream::secured(socket, tls.into()))
    }

    /// The side that connects to a server of this name.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn dialled(
        socket: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Stream> {
        let tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Stream::secured(socket, tls.into()))
    }

    fn secured(socket: TcpStream, mut tls: rustls::Connection) -> Stream {
        tls.set_buffer_limit(Some(AHEAD));
        Stream::Tls(Box::new(Secured { socket, tls }))
    }

    /// The socket beneath.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(secured) => &secured.socket,
        }
    }

    /// The socket beneath, to watch it.
    pub fn socket_mut(&mut self) -> &mut TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(secured) => &mut secured.socket,
        }
    }

    /// Tells whether the connection is in TLS.
    pub fn is_tls(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    /// Tells whether the two sides have not agreed on keys yet.
    pub fn is_handshaking(&self) -> bool {
        matches!(self, Stream::Tls(secured) if secured.tls.is_handshaking())
    }

    /// Tells whether bytes that were taken for writing have not reached the socket.
    pub fn has_pending(&self) -> bool {
        matches!(self, Stream::Tls(secured) if secured.tls.wants_write())
    }

    /// Says that nothing more comes and ends this side, as far as the system takes that now.
    pub fn close(&mut self) {
        if let Stream::Tls(secured) = self {
            secured.tls.send_close_notify();
            // The other side may be gone.
            let _ = secured.flush();
        }
        let _ = self.socket().shutdown(Shutdown::Write);
    }
}

impl Secured {
    /// Brings what is to leave to the socket, as much as it takes.
    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
            match self.tls.read_tls(&mut self.socket) {
                // The reader finds out whether the other side had closed it.
                Ok(0) => {
                    let _ = self.tls.process_new_packets();
                    return match self.tls.reader().read(buffer) {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
                        other => other,
                    };
                }
                Ok(_) => {
                    if let Err(error) = self.tls.process_new_packets() {
                        // The other side gets the alert, if it reads.
                        let _ = self.flush();
                        return Err(io::Error::new(ErrorKind::InvalidData, error));
                    }
                    self.flush()?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes bytes, if what was taken before has left.
    fn write(
        &mut self,
        write: impl FnOnce(&mut rustls::Writer<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.flush()?;
        if self.tls.wants_write() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let taken = write(&mut self.tls.writer())?;
        self.flush()?;
        // Before the keys are agreed on there is room for a little.
        if taken == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(buffer),
            Stream::Tls(secured) => secured.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Tls(secured) => secured.write(|writer| writer.write(bytes)),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write_vectored(pieces),
            Stream::Tls(secured) => secured.write(|writer| writer.write_vectored(pieces)),
        }
    }

    /// Brings what was taken to the socket, as much as that takes; the rest is [pending](Stream::has_pending).
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
            Stream::Tls(secured) => secured.flush(),
        }
    }
}
