//! TLS: certificates and keys from files, for clients and for the links between nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ordain_role::NodeId;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};

use crate::cluster::ClusterConfig;
use crate::secrets::{self, SecretError};

/// The choice whether clients must show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthClients {
    /// They must.
    #[default]
    Yes,
    /// They are not asked.
    No,
    /// They may; a certificate that is given must be good.
    Optional,
}

/// TLS for clients.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// The port, on the address of `--listen`.
    pub port: u16,
    /// No port without TLS is offered.
    pub only: bool,
    /// The node's certificate and those between it and the authority, PEM.
    pub cert_file: PathBuf,
    /// The key, PEM.
    pub key_file: PathBuf,
    /// The certificates of the authorities for those of clients, PEM.
    pub ca_cert_file: Option<PathBuf>,
    /// The choice whether clients must show one.
    pub auth_clients: AuthClients,
}

/// The reason why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file with a key cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A file has not in it what it should.
    #[error("{}: {reason}: it should hold {what} in PEM", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The content that it should have.
        what: &'static str,
        /// The error.
        reason: rustls::pki_types::pem::Error,
    },
    /// It holds none.
    #[error("{} holds no {what}: it should hold one in PEM", path.display())]
    Nothing {
        /// The file.
        path: PathBuf,
        /// The content that it should have.
        what: &'static str,
    },
    /// The certificate and the key cannot be used, or not together.
    #[error("{}: {reason}: check that {} is the key of that certificate", cert.display(), key.display())]
    Pair {
        /// The file of the certificate.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// The error.
        reason: rustls::Error,
    },
    /// The certificates of authorities cannot be used.
    #[error("{}: {reason}: check the certificates of authorities in it", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
    /// A certificate that the other side would refuse.
    #[error("{}: others would refuse this certificate: {reason}: get another one", path.display())]
    NoGood {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Clients must show a certificate, and nothing says whose are good.
    #[error(
        "clients must show certificates and nothing says which are good: set --tls-ca-cert-file, or --tls-auth-clients no"
    )]
    NoAuthority,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let what = "certificates";
    let pem = |reason| TlsError::Pem { path: path.to_owned(), what, reason };
    let all =
        CertificateDer::pem_file_iter(path).map_err(pem)?.collect::<Result<Vec<_>, _>>().map_err(pem)?;
    if all.is_empty() { Err(TlsError::Nothing { path: path.to_owned(), what }) } else { Ok(all) }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = secrets::read(path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|reason| TlsError::Pem {
        path: path.to_owned(),
        what: "a private key",
        reason,
    })
}

fn authorities(path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store
            .add(certificate)
            .map_err(|error| TlsError::Authorities { path: path.to_owned(), reason: error.to_string() })?;
    }
    Ok(Arc::new(store))
}

fn verifier(ca: &Path, must: bool) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let builder = WebPkiClientVerifier::builder_with_provider(authorities(ca)?, provider());
    let builder = if must { builder } else { builder.allow_unauthenticated() };
    builder.build().map_err(|error| TlsError::Authorities { path: ca.to_owned(), reason: error.to_string() })
}

fn server(
    (chain, key): (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
    verifier: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<ServerConfig, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    builder.with_single_cert(chain, key)
}

/// The configuration of a client that trusts the authorities in a file, and has a certificate of its own if one is named.
///
/// # Errors
/// [`TlsError`].
pub fn client(ca: &Path, own: Option<(&Path, &Path)>) -> Result<Arc<ClientConfig>, TlsError> {
    let pair = |reason| {
        let (cert, key) = own.unwrap_or((ca, ca));
        TlsError::Pair { cert: cert.to_owned(), key: key.to_owned(), reason }
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_root_certificates(authorities(ca)?);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((cert_file, key_file)) => {
            builder.with_client_auth_cert(certificates(cert_file)?, key(key_file)?).map_err(pair)?
        }
    };
    Ok(Arc::new(config))
}

/// Checks that a certificate is good for a server of this name at this moment, by these authorities.
fn verify(
    path: &Path,
    chain: &[CertificateDer<'static>],
    name: &ServerName<'static>,
    authorities: Arc<RootCertStore>,
) -> Result<(), TlsError> {
    let no_good = |reason: String| TlsError::NoGood { path: path.to_owned(), reason };
    let (own, between) = chain.split_first().ok_or_else(|| no_good("it is empty".to_owned()))?;
    let verifier = WebPkiServerVerifier::builder_with_provider(authorities, provider())
        .build()
        .map_err(|error| no_good(error.to_string()))?;
    verifier
        .verify_server_cert(own, between, name, &[], UnixTime::now())
        .map(|_| ())
        .map_err(|error| no_good(error.to_string()))
}

/// The two sides of what a node offers in TLS with its certificate.
#[derive(Clone, Debug)]
pub struct Offered {
    /// The port for clients.
    pub clients: Arc<ServerConfig>,
    /// The admin server: certificates of clients are not asked for, because probes and browsers have none and logins are.
    pub admin: Arc<ServerConfig>,
}

impl ClientTls {
    /// The files that it is read from.
    pub fn files(&self) -> Vec<PathBuf> {
        [&self.cert_file, &self.key_file].into_iter().chain(&self.ca_cert_file).cloned().collect()
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(&self) -> Result<Offered, TlsError> {
        let verifier = match (self.auth_clients, &self.ca_cert_file) {
            (AuthClients::No, _) => None,
            (_, Some(ca)) => Some(verifier(ca, self.auth_clients == AuthClients::Yes)?),
            (_, None) => return Err(TlsError::NoAuthority),
        };
        let (chain, key) = (certificates(&self.cert_file)?, key(&self.key_file)?);
        let pair =
            |reason| TlsError::Pair { cert: self.cert_file.clone(), key: self.key_file.clone(), reason };
        let mut admin = server((chain.clone(), key.clone_key()), None).map_err(pair)?;
        admin.alpn_protocols = vec![b"http/1.1".to_vec()];
        let clients = server((chain, key), verifier).map_err(pair)?;
        Ok(Offered { clients: Arc::new(clients), admin: Arc::new(admin) })
    }

    /// Holds the certificate against the clock. Whose it is and for which name is for clients to judge.
    ///
    /// # Errors
    /// [`TlsError::NoGood`] if it has expired or begins later; what cannot be read.
    pub fn check(&self) -> Result<(), TlsError> {
        let chain = certificates(&self.cert_file)?;
        let mut itself = RootCertStore::empty();
        // One that is no authority is refused as such below, after its time has been checked.
        let _ = chain.first().map(|own| itself.add(own.clone()));
        let name = ServerName::from(IpAddr::from([127, 0, 0, 1]));
        let reason = |error: &CertificateError| {
            matches!(
                error,
                CertificateError::Expired
                    | CertificateError::ExpiredContext { .. }
                    | CertificateError::NotValidYet
                    | CertificateError::NotValidYetContext { .. }
            )
        };
        let Some((own, between)) = chain.split_first() else { return Ok(()) };
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(itself), provider()).build();
        let Ok(verifier) = verifier else { return Ok(()) };
        match verifier.verify_server_cert(own, between, &name, &[], UnixTime::now()) {
            Err(rustls::Error::InvalidCertificate(error)) if reason(&error) => {
                Err(TlsError::NoGood { path: self.cert_file.clone(), reason: error.to_string() })
            }
            _ => Ok(()),
        }
    }
}

/// TLS between nodes: the table `[tls]` of a cluster's file. Each node has a certificate for the address or the name by
/// which the file has the others reach it, and all of one authority.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LinkFiles {
    /// The node's certificate and those between it and the authority, PEM.
    #[serde(alias = "cert_file")]
    pub cert_file: PathBuf,
    /// The key, PEM.
    #[serde(alias = "key_file")]
    pub key_file: PathBuf,
    /// The certificates of the authorities that the nodes' are of, PEM.
    #[serde(alias = "ca_cert_file")]
    pub ca_cert_file: PathBuf,
}

/// The host of `host:port`, as a certificate names it.
pub(crate) fn host_name(address: &str) -> Option<ServerName<'static>> {
    let (host, _) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned()).ok()
}

impl LinkFiles {
    /// The files that it is read from.
    pub fn files(&self) -> Vec<PathBuf> {
        vec![self.cert_file.clone(), self.key_file.clone(), self.ca_cert_file.clone()]
    }

    /// Reads the files: for the peers that dial this node, and for those that it dials.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(&self) -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), TlsError> {
        let pair =
            |reason| TlsError::Pair { cert: self.cert_file.clone(), key: self.key_file.clone(), reason };
        let own = (certificates(&self.cert_file)?, key(&self.key_file)?);
        let server = server(own, Some(verifier(&self.ca_cert_file, true)?)).map_err(pair)?;
        let client = client(&self.ca_cert_file, Some((&self.cert_file, &self.key_file)))?;
        Ok((Arc::new(server), client))
    }

    /// Holds the certificate of the node at this address against what its peers will.
    ///
    /// # Errors
    /// [`TlsError::NoGood`] if they would refuse it; what cannot be read.
    pub fn check(&self, address: &str) -> Result<(), TlsError> {
        let Some(name) = host_name(address) else { return Ok(()) };
        let (chain, authorities) = (certificates(&self.cert_file)?, authorities(&self.ca_cert_file)?);
        verify(&self.cert_file, &chain, &name, authorities)
    }

    /// The names that the certificates of peers must be for.
    pub fn names(cluster: &ClusterConfig) -> BTreeMap<NodeId, ServerName<'static>> {
        let members = cluster.members.iter();
        members.filter_map(|member| Some((member.node, host_name(&member.cluster_name)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};

    use super::*;

    type Issuer = CertifiedIssuer<'static, KeyPair>;

    fn authority() -> Issuer {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// Writes a certificate for 127.0.0.1 that holds up to the end of a year, and its key.
    fn certify(dir: &Path, issuer: &Issuer, until: i32) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(until, 12, 31);
        std::fs::write(dir.join("cert"), params.signed_by(&key, issuer).unwrap().pem()).unwrap();
        std::fs::write(dir.join("key"), key.serialize_pem()).unwrap();
    }

    #[test]
    fn a_certificate_is_held_against_the_clock_the_authority_and_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, other) = (authority(), authority());
        std::fs::write(dir.path().join("ca"), ours.pem()).unwrap();
        let path = |name: &str| dir.path().join(name);
        let clients = ClientTls {
            port: 0,
            only: false,
            cert_file: path("cert"),
            key_file: path("key"),
            ca_cert_file: None,
            auth_clients: AuthClients::No,
        };
        let links = LinkFiles { cert_file: path("cert"), key_file: path("key"), ca_cert_file: path("ca") };
        certify(dir.path(), &ours, 2900);
        clients.check().unwrap();
        links.check("127.0.0.1:7000").unwrap();
        let said = |error: Result<(), TlsError>| error.unwrap_err().to_string();
        assert!(said(links.check("127.0.0.2:7000")).contains("not valid for name"));
        certify(dir.path(), &other, 2900);
        clients.check().unwrap();
        assert!(said(links.check("127.0.0.1:7000")).contains("invalid peer certificate"));
        certify(dir.path(), &ours, 2002);
        assert!(said(clients.check()).contains("expired"));
        assert!(said(links.check("127.0.0.1:7000")).contains("expired"));
    }
}
