//! Identity of a server, by its INFO.

use std::fmt;
use std::net::SocketAddr;

use anyhow::{Context, bail};
use ordain_model::Datum;

use super::link::{Link, no_error};
use crate::server::Process;

/// A server, by its INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// The software: `ordain`, `redis`, `valkey`, …
    pub software: String,
    /// The version of the software.
    pub version: String,
    /// The engine, if INFO names one.
    pub engine: Option<String>,
    /// The process id on the server's machine, if INFO names it.
    pub process_id: Option<u32>,
    /// The address of the server.
    pub address: SocketAddr,
}

impl ServerInfo {
    /// Asks a server.
    pub fn ask(link: &mut Link) -> anyhow::Result<ServerInfo> {
        let reply = link.ask(&["INFO"])?;
        no_error(&reply).context("INFO was refused")?;
        let (Datum::Bulk(text) | Datum::Verbatim(_, text)) = Datum::first(&reply) else {
            bail!("INFO answered no text")
        };
        Ok(ServerInfo::read(&String::from_utf8_lossy(text), link.peer()?))
    }

    fn read(text: &str, address: SocketAddr) -> ServerInfo {
        let field = |name: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            found.map(|value| value.trim().to_owned())
        };
        // Those that imitate Redis give its version too, and their own name beside it.
        let named = field("server_name");
        let others = ["ordain", "valkey", "dragonfly", "keydb", "kvrocks"];
        let named = named.or_else(|| {
            others.iter().find(|name| field(&format!("{name}_version")).is_some()).map(|n| (*n).to_owned())
        });
        let software = named.unwrap_or_else(|| "redis".to_owned());
        let version = field(&format!("{software}_version")).or_else(|| field("redis_version"));
        ServerInfo {
            version: version.unwrap_or_default(),
            engine: field("engine").or_else(|| field("ordain_engine")),
            process_id: field("process_id").and_then(|id| id.parse().ok()),
            software,
            address,
        }
    }

    /// True if the server is Ordain.
    pub fn is_ordain(&self) -> bool {
        self.software == "ordain"
    }

    /// The server's process, if it is on this machine.
    pub fn process(&self) -> Option<Process> {
        let process = Process::new(self.process_id?);
        (self.address.ip().is_loopback() && process.is_there()).then_some(process)
    }
}

impl fmt::Display for ServerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.software, self.version)?;
        match &self.engine {
            Some(engine) => write!(f, " ({engine})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_distinguished() {
        let read = |text: &str| ServerInfo::read(text, SocketAddr::from(([10, 0, 0, 1], 6379)));
        let redis = read("# Server\r\nredis_version:7.0.15\r\nprocess_id:12\r\n");
        assert_eq!(
            (redis.to_string(), redis.process_id, redis.is_ordain()),
            ("redis 7.0.15".into(), Some(12), false)
        );
        // Not on this machine: whatever has that number here is another process.
        assert!(redis.process().is_none());
        let ordain = read("redis_version:7.0.15\r\nserver_name:ordain\r\nordain_version:0.1.0\r\n");
        assert_eq!((ordain.to_string(), ordain.is_ordain()), ("ordain 0.1.0".into(), true));
        let valkey = read("redis_version:7.2.4\r\nvalkey_version:8.0.1\r\n");
        assert_eq!(valkey.to_string(), "valkey 8.0.1");
        assert_eq!(read("").to_string(), "redis ");
    }
}
