//! TLS: certificates and keys from files, for clients and for the links between nodes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ordain_runtime::LinkTls;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};

use crate::cluster::ClusterConfig;
use crate::secrets::{self, SecretError};

/// Whether clients must show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthClients {
    /// They must.
    #[default]
    Yes,
    /// They are not asked.
    No,
    /// They may; one that is shown must be good.
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
    /// Its key, PEM.
    pub key_file: PathBuf,
    /// The certificates of the authorities for those of clients, PEM.
    pub ca_cert_file: Option<PathBuf>,
    /// Whether clients must show one.
    pub auth_clients: AuthClients,
}

/// Why there can be no TLS.
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
        /// What it should hold.
        what: &'static str,
        /// What is wrong.
        reason: rustls::pki_types::pem::Error,
    },
    /// It holds none.
    #[error("{} holds no {what}: it should hold one in PEM", path.display())]
    Nothing {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// The certificate and the key cannot be used, or not together.
    #[error("{}: {reason}: check that {} is the key of that certificate", cert.display(), key.display())]
    Pair {
        /// The file of the certificate.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// What is wrong.
        reason: rustls::Error,
    },
    /// The certificates of authorities cannot be used.
    #[error("{}: {reason}: check the certificates of authorities in it", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// What is wrong.
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
    (cert_file, key_file): (&Path, &Path),
    verifier: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let pair = |reason| TlsError::Pair { cert: cert_file.to_owned(), key: key_file.to_owned(), reason };
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(pair)?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let config = builder.with_single_cert(certificates(cert_file)?, key(key_file)?).map_err(pair)?;
    Ok(Arc::new(config))
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let verifier = match (self.auth_clients, &self.ca_cert_file) {
            (AuthClients::No, _) => None,
            (_, Some(ca)) => Some(verifier(ca, self.auth_clients == AuthClients::Yes)?),
            (_, None) => return Err(TlsError::NoAuthority),
        };
        server((&self.cert_file, &self.key_file), verifier)
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
    /// Its key, PEM.
    #[serde(alias = "key_file")]
    pub key_file: PathBuf,
    /// The certificates of the authorities that the nodes' are of, PEM.
    #[serde(alias = "ca_cert_file")]
    pub ca_cert_file: PathBuf,
}

impl LinkFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(&self, cluster: &ClusterConfig) -> Result<LinkTls, TlsError> {
        let files = (&*self.cert_file, &*self.key_file);
        let pair =
            |reason| TlsError::Pair { cert: self.cert_file.clone(), key: self.key_file.clone(), reason };
        let client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(pair)?
            .with_root_certificates(authorities(&self.ca_cert_file)?)
            .with_client_auth_cert(certificates(&self.cert_file)?, key(&self.key_file)?)
            .map_err(pair)?;
        let names = cluster.members.iter().filter_map(|member| {
            let (host, _) = member.cluster_name.rsplit_once(':')?;
            let host = host.trim_start_matches('[').trim_end_matches(']');
            Some((member.node, ServerName::try_from(host.to_owned()).ok()?))
        });
        Ok(LinkTls {
            server: server(files, Some(verifier(&self.ca_cert_file, true)?))?,
            client: Arc::new(client),
            names: names.collect(),
        })
    }
}
