//! TLS of a node: its certificates, and what reads them again when their files change.

use ordain_runtime::{Current, LinkTls};
use rustls::{ClientConfig, ServerConfig};

use super::{ServeConfig, ServeError};
use crate::certificates::Watched;
use crate::cluster;
use crate::tls::{self, LinkFiles, TlsError};

/// All that a node has of TLS, and what reads it again when its files change.
#[derive(Default)]
pub(super) struct Secured {
    pub clients: Option<Current<ServerConfig>>,
    pub admin: Option<Current<ServerConfig>>,
    pub links: Option<LinkTls>,
    /// Whose certificates admin servers may show.
    pub trust: Option<Current<ClientConfig>>,
    pub watched: Vec<Watched>,
}

impl Secured {
    /// Reads what the configuration names.
    pub fn load(config: &ServeConfig) -> Result<Secured, ServeError> {
        let mut all = Secured::default();
        let is_admin_in_tls =
            cluster::is_admin_in_tls(config.operators.tls, config.tls.is_some(), config.admin);
        if is_admin_in_tls && config.tls.is_none() {
            return Err(ServeError::AdminTls);
        }
        // A node is started with a certificate that is of no use, so that the others go on; a later one is not taken.
        let warn = |checked: Result<(), TlsError>| {
            checked.unwrap_or_else(|error| tracing::error!("{error}"));
        };
        if let Some(files) = config.tls.clone() {
            let watched = Watched::new("clients and the admin server", files.files());
            let offered = files.load()?;
            warn(files.check());
            let (clients, admin) = (Current::from(offered.clients), Current::from(offered.admin));
            all.clients = Some(clients.clone());
            all.admin = is_admin_in_tls.then(|| admin.clone());
            all.watched.push(watched.renewed_by(move || {
                let offered = files.load()?;
                files.check()?;
                clients.replace(offered.clients);
                admin.replace(offered.admin);
                Ok(())
            }));
        }
        let place = config.cluster.as_ref();
        let links = place.and_then(|place| Some((place.cluster.tls.clone()?, place)));
        if let Some((files, place)) = &links {
            let (files, own) = (files.clone(), place.member().cluster_name.clone());
            let watched = Watched::new("the links between nodes", files.files());
            let (server, client) = files.load()?;
            warn(files.check(&own));
            let (server, client) = (Current::from(server), Current::from(client));
            let names = LinkFiles::names(&place.cluster);
            all.links = Some(LinkTls { server: server.clone(), client: client.clone(), names });
            all.watched.push(watched.renewed_by(move || {
                let both = files.load()?;
                files.check(&own)?;
                server.replace(both.0);
                client.replace(both.1);
                Ok(())
            }));
        }
        let authority = config.tls.as_ref().and_then(|files| files.ca_cert_file.clone());
        if let Some(ca) = authority.or(links.map(|(files, _)| files.ca_cert_file)) {
            let watched = Watched::new("asking other admin servers", vec![ca.clone()]);
            let trust = Current::from(tls::client(&ca, None)?);
            all.trust = Some(trust.clone());
            all.watched.push(watched.renewed_by(move || {
                trust.replace(tls::client(&ca, None)?);
                Ok(())
            }));
        }
        Ok(all)
    }
}
