//! The address of a server: `redis://[[user]:password@]host[:port][/db]`, as other tools for Redis write it.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use anyhow::{Context, bail};

/// A server, and the database to use there.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// The host's name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The user to log in as; none: the default user.
    pub user: Option<String>,
    /// The password of the user.
    pub password: Option<String>,
    /// The database's number.
    pub db: u8,
}

impl Target {
    /// A server at an address, without a password.
    pub fn at(address: SocketAddr) -> Target {
        Target { host: address.ip().to_string(), port: address.port(), user: None, password: None, db: 0 }
    }

    /// Resolves the host's name.
    pub fn resolve(&self) -> anyhow::Result<SocketAddr> {
        let mut found = (&*self.host, self.port)
            .to_socket_addrs()
            .with_context(|| format!("cannot find the address of {}", self.host))?;
        found.next().with_context(|| format!("{} has no address", self.host))
    }
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Target> {
        const FORM: &str = "it is written redis://[[user]:password@]host[:port][/db]";
        let rest = match text.split_once("://") {
            Some(("redis", rest)) => rest,
            Some(("rediss", _)) => bail!("target {text:?} asks for TLS, which this client does not speak"),
            Some((scheme, _)) => bail!("target {text:?} has the scheme {scheme:?}: {FORM}"),
            None => bail!("target {text:?} has no scheme: {FORM}"),
        };
        let (place, db) = match rest.split_once('/') {
            None | Some((_, "")) => (rest.trim_end_matches('/'), 0),
            Some((place, db)) => {
                let db =
                    db.parse().with_context(|| format!("target {text:?}: {db:?} is no database number"))?;
                (place, db)
            }
        };
        // A password may hold an at sign that was not escaped; a host cannot.
        let (login, place) = match place.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, place),
        };
        let (user, password) = match login.map(|login| login.split_once(':')) {
            None => (None, None),
            Some(None) => bail!("target {text:?} names a user and no password: {FORM}"),
            Some(Some((user, password))) => {
                let user = if user.is_empty() { None } else { Some(unescape(user)?) };
                (user, Some(unescape(password)?))
            }
        };
        // An IPv6 address stands in brackets.
        let (host, port) = match place.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':').unwrap_or(port)),
            None => place.split_once(':').unwrap_or((place, "")),
        };
        if host.is_empty() {
            bail!("target {text:?} names no host: {FORM}");
        }
        let port = match port {
            "" => 6379,
            port => port.parse().with_context(|| format!("target {text:?}: {port:?} is no port"))?,
        };
        Ok(Target { host: host.to_owned(), port, user, password, db })
    }
}

/// Undoes percent escapes.
fn unescape(text: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.context("a percent sign in a target's user or password is written %25")?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).context("a target's user or password is not UTF-8")
}

impl fmt::Display for Target {
    /// Without the password: this is for reports.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bracketed = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        write!(f, "redis://{bracketed}:{}", self.port)?;
        if self.db != 0 { write!(f, "/{}", self.db) } else { Ok(()) }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, u16, Option<String>, Option<String>, u8) {
        let Target { host, port, user, password, db } = text.parse().unwrap();
        (host, port, user, password, db)
    }

    #[test]
    fn every_part_may_be_left_out_but_the_host() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(parsed("redis://localhost"), ("localhost".into(), 6379, None, None, 0));
        assert_eq!(parsed("redis://10.0.0.1:7000/"), ("10.0.0.1".into(), 7000, None, None, 0));
        assert_eq!(parsed("redis://:p%40ss@h:1/3"), ("h".into(), 1, None, some("p@ss"), 3));
        assert_eq!(parsed("redis://me:a:b@h"), ("h".into(), 6379, some("me"), some("a:b"), 0));
        assert_eq!(parsed("redis://[::1]:7000/2"), ("::1".into(), 7000, None, None, 2));
        assert_eq!(parsed("redis://[::1]"), ("::1".into(), 6379, None, None, 0));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (text, part) in [
            ("localhost:6379", "no scheme"),
            ("http://h", "scheme \"http\""),
            ("rediss://h", "TLS"),
            ("redis://", "no host"),
            ("redis://:7", "no host"),
            ("redis://h:port", "no port"),
            ("redis://h:70000", "no port"),
            ("redis://h/x", "no database number"),
            ("redis://user@h", "no password"),
            ("redis://:%zz@h", "%25"),
        ] {
            let error = format!("{:#}", text.parse::<Target>().unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_report_does_not_tell_the_password() {
        let target: Target = "redis://u:secret@h:1/3".parse().unwrap();
        assert_eq!(
            (target.to_string(), format!("{target:?}")),
            ("redis://h:1/3".into(), "redis://h:1/3".into())
        );
        assert_eq!("redis://[::1]".parse::<Target>().unwrap().to_string(), "redis://[::1]:6379");
    }
}
