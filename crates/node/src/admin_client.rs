//! The client of admin servers, by which nodes and `ordain cluster` ask for the status of nodes.
//!
//! A login is sent in TLS at once. Without TLS it is sent only to a server that has asked for one, so that it does not pass in
//! the clear to a port that speaks TLS.

use std::fmt;
use std::io::{self, ErrorKind};
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ordain_runtime::Current;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::tls::host_name;

/// The longest answer that is read, bytes.
const ANSWER_MAX: u64 = 4 << 20;

/// A user of admin servers and its password, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user's name.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(…)")
    }
}

impl Login {
    /// The header of a request that names the login (RFC 7617).
    fn header(&self) -> String {
        let both = format!("{}:{}", self.user, self.password);
        format!("Authorization: Basic {}\r\n", STANDARD.encode(both))
    }
}

/// The address of an admin server, `host:port`, with `https://` before it where the server is in TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Host and port.
    pub address: String,
    /// True if the server is in TLS.
    pub is_tls: bool,
}

/// Text that is no address of an admin server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no address of an admin server: write host:port, or https://host:port where it is in TLS")]
pub struct NoTarget(String);

impl FromStr for Target {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Target, NoTarget> {
        let (is_tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => (false, text),
        };
        let address = rest.strip_suffix('/').unwrap_or(rest);
        let has_port = address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
        });
        match has_port {
            true => Ok(Target { address: address.to_owned(), is_tls }),
            false => Err(NoTarget(text.to_owned())),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_tls { "https://" } else { "" })?;
        f.write_str(&self.address)
    }
}

/// The reason why an admin server has not given what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is no connection to it, or it broke.
    #[error("{0}")]
    Unreachable(io::Error),
    /// It does not answer.
    #[error("it does not answer in time")]
    Late,
    /// It has closed the connection without an answer.
    #[error("it has closed the connection without an answer")]
    Closed,
    /// It asks for a login and was given none.
    #[error("its admin server asks for a login, and none is given here (401)")]
    NoLogin,
    /// It does not take the login.
    #[error(
        "its admin server refuses the login of user '{0}' (401): no such user, a wrong password, or switched off"
    )]
    WrongLogin(String),
    /// The user has no right to it.
    #[error("user '{0}' may not look at its admin server (403): that takes the right to the command 'info'")]
    Forbidden(String),
    /// Too many logins from here have failed.
    #[error(
        "its admin server takes no login from here for a while (429), because many have failed: wait a minute"
    )]
    TooMany,
    /// It is in TLS and was asked without.
    #[error("its admin server is in TLS: write https:// before its address")]
    InTls,
    /// Nothing says whose certificates are good.
    #[error("its admin server is in TLS, and nothing says whose certificates are good: name the authority")]
    NoAuthority,
    /// The certificate or its TLS is no good.
    #[error("TLS with its admin server failed: {0}: check its certificate, the authority and the name")]
    Tls(String),
    /// It is something else.
    #[error("what answers there is no node of ordain ({0})")]
    Stranger(String),
}

impl AskError {
    /// Tells whether another login could be admitted.
    pub fn is_about_login(&self) -> bool {
        matches!(self, AskError::NoLogin | AskError::WrongLogin(_) | AskError::Forbidden(_))
    }
}

/// A client of admin servers.
#[derive(Clone, Debug)]
pub struct Asker {
    /// The login to give where one is asked for.
    pub login: Option<Login>,
    /// The authorities whose certificates are good.
    pub trust: Option<Current<ClientConfig>>,
    /// The time that a server has to answer.
    pub patience: Duration,
}

impl Asker {
    /// The content at a path.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn get(&self, target: &Target, path: &str) -> Result<Vec<u8>, AskError> {
        let asked = async {
            let login = self.login.as_ref();
            if target.is_tls {
                return self.exchange(target, path, login).await;
            }
            match self.exchange(target, path, None).await {
                Err(AskError::NoLogin) if login.is_some() => self.exchange(target, path, login).await,
                other => other,
            }
        };
        tokio::time::timeout(self.patience, asked).await.unwrap_or(Err(AskError::Late))
    }

    /// The content at a path, for a thread that has no async runtime.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn get_now(&self, target: &Target, path: &str) -> Result<Vec<u8>, AskError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(AskError::Unreachable)?.block_on(self.get(target, path))
    }

    async fn exchange(
        &self,
        target: &Target,
        path: &str,
        login: Option<&Login>,
    ) -> Result<Vec<u8>, AskError> {
        let request = format!(
            "GET {path} HTTP/1.0\r\nHost: {}\r\n{}\r\n",
            target.address,
            login.map(Login::header).unwrap_or_default()
        );
        let socket = TcpStream::connect(&target.address).await.map_err(AskError::Unreachable)?;
        let answer = if target.is_tls {
            let config = self.trust.as_ref().ok_or(AskError::NoAuthority)?.get();
            let name =
                host_name(&target.address).ok_or_else(|| AskError::Tls("its host is no name".to_owned()))?;
            let stream = TlsConnector::from(config).connect(name, socket).await.map_err(tls)?;
            send(stream, &request).await.map_err(tls)?
        } else {
            match send(socket, &request).await {
                // What is in TLS may close the connection before all that was sent is read.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(AskError::Closed),
                other => other.map_err(AskError::Unreachable)?,
            }
        };
        read(answer, login)
    }
}

/// The cause of a failure of a connection in TLS.
fn tls(error: io::Error) -> AskError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidMessage(_)) => AskError::Tls("it does not speak TLS".to_owned()),
        Some(inner) => AskError::Tls(inner.to_string()),
        None if error.kind() == ErrorKind::UnexpectedEof => AskError::Closed,
        None => AskError::Unreachable(error),
    }
}

async fn send(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> io::Result<Vec<u8>> {
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// The body of an answer to a request with this login, or the refusal that the answer is.
fn read(mut answer: Vec<u8>, login: Option<&Login>) -> Result<Vec<u8>, AskError> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let is_http = answer.starts_with(b"HTTP/1.");
    let user = || login.map(|login| login.user.clone()).unwrap_or_default();
    match (answer.get(9..12), end) {
        _ if answer.is_empty() => Err(AskError::Closed),
        // An alert of TLS.
        _ if answer.starts_with(b"\x15\x03") => Err(AskError::InTls),
        (Some(b"200"), Some(end)) if is_http => Ok(answer.split_off(end + 4)),
        (Some(b"401"), _) if is_http && login.is_none() => Err(AskError::NoLogin),
        (Some(b"401"), _) if is_http => Err(AskError::WrongLogin(user())),
        (Some(b"403"), _) if is_http => Err(AskError::Forbidden(match login {
            Some(_) => user(),
            None => "default".to_owned(),
        })),
        (Some(b"429"), _) if is_http => Err(AskError::TooMany),
        _ => {
            let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
            let line = &line[..line.len().min(80)];
            Err(AskError::Stranger(format!("it says: {}", line.escape_ascii())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_encoded_as_the_rfc_has_it_and_not_printed() {
        let login = Login { user: "default".into(), password: "hunter2".into() };
        assert_eq!(login.header(), "Authorization: Basic ZGVmYXVsdDpodW50ZXIy\r\n");
        assert!(!format!("{login:?}").contains("hunter2"));
    }

    #[test]
    fn an_address_says_whether_it_is_in_tls() {
        for (text, address, is_tls) in [
            ("10.0.0.1:9121", "10.0.0.1:9121", false),
            ("http://node:9121/", "node:9121", false),
            ("https://node:9121", "node:9121", true),
            ("https://[::1]:9121/", "[::1]:9121", true),
        ] {
            assert_eq!(text.parse(), Ok(Target { address: address.into(), is_tls }), "{text}");
        }
        for wrong in ["", "node", "node:", "node:x", ":9121", "ftp://node:1", "https://node:9121/status"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_refusal_is_told_from_other_answers() {
        let login = Login { user: "ops".into(), password: "p".into() };
        let of = |answer: &[u8], login: Option<&Login>| match read(answer.to_vec(), login) {
            Ok(body) => String::from_utf8(body).unwrap(),
            Err(error) => error.to_string(),
        };
        assert_eq!(of(b"HTTP/1.0 200 OK\r\na: b\r\n\r\nbody", None), "body");
        for (answer, login, words) in [
            (&b"HTTP/1.0 401 Unauthorized\r\n\r\n"[..], None, "asks for a login"),
            (b"HTTP/1.0 401 Unauthorized\r\n\r\n", Some(&login), "refuses the login of user 'ops'"),
            (b"HTTP/1.0 403 Forbidden\r\n\r\n", Some(&login), "user 'ops' may not look"),
            (b"HTTP/1.0 403 Forbidden\r\n\r\n", None, "user 'default' may not look"),
            (b"HTTP/1.0 429 Too Many Requests\r\n\r\n", Some(&login), "takes no login"),
            (b"HTTP/1.0 404 Not Found\r\n\r\n", None, "no node of ordain"),
            (b"HTTP/1.0 200 OK\r\n", None, "no node of ordain"),
            (b"-ERR unknown\r\n", None, "no node of ordain"),
            (b"\x15\x03\x03\x00\x02\x02\x32", None, "https://"),
            (b"", None, "without an answer"),
        ] {
            assert!(of(answer, login).contains(words), "{}", of(answer, login));
        }
    }
}
