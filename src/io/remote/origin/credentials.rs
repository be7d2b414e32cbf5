//! Credentials that a service gives out: that of the machine, of the container or of an identity.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use object_store::{BackoffConfig, CredentialProvider, RetryConfig};

/// The beginning of the message of somebody without credentials.
pub(super) const NOBODY: &str = "no credentials: ";

/// Returns how often such a service is asked: on most machines there is none.
pub(super) fn few() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 2,
        retry_timeout: Duration::from_secs(10),
    }
}

/// The time for which a service that fails is not asked again.
const QUIET: Duration = Duration::from_secs(10);

/// Credentials of which a service may say that they are no longer good.
pub(super) trait Renew: Send + Sync {
    /// Has other credentials used from now on. False if it was done since a request was sent that was refused, but not long before.
    fn renew(&self, sent: Instant) -> bool;
}

/// The last time that credentials were given up, so that a server that refuses everything does not have them asked for each time.
#[derive(Debug, Default)]
pub(super) struct Renewals(Mutex<Option<Instant>>);

impl Renewals {
    /// Returns whether a request that was sent then and was refused may be sent with other credentials; calls `begin` if these are
    /// to be asked for.
    pub(super) fn may(&self, sent: Instant, begin: impl FnOnce()) -> bool {
        let mut last = self.0.lock().unwrap_or_else(|e| e.into_inner());
        match *last {
            // Somebody else did it meanwhile.
            Some(at) if at >= sent => true,
            Some(at) if at.elapsed() < QUIET => false,
            _ => {
                begin();
                *last = Some(Instant::now());
                true
            }
        }
    }
}

type Service<T> = Arc<dyn CredentialProvider<Credential = T>>;

/// Prepares for a service.
type Make<T> = Box<dyn Fn() -> Result<Service<T>, String> + Send + Sync>;

/// Credentials of a service; without any it says what else there is. If the service fails later on, the last ones are used: whoever
/// is asked with them judges whether they are still good.
pub(super) struct Asked<T> {
    make: Make<T>,
    known: Mutex<Known<T>>,
    renewals: Renewals,
    /// One asks at a time, so that others see what came of it.
    turn: tokio::sync::Mutex<()>,
    hint: &'static str,
}

struct Known<T> {
    service: Service<T>,
    last: Option<Arc<T>>,
    /// The time at which the service failed, and why.
    failed: Option<(Instant, String)>,
}

impl<T> std::fmt::Debug for Asked<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asked").finish_non_exhaustive()
    }
}

impl<T> Asked<T> {
    /// Credentials of a service.
    pub(super) fn new(
        hint: &'static str,
        make: impl Fn() -> Result<Service<T>, String> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, String> {
        let known = Known {
            service: make()?,
            last: None,
            failed: None,
        };
        Ok(Arc::new(Self {
            make: Box::new(make),
            known: Mutex::new(known),
            renewals: Renewals::default(),
            turn: tokio::sync::Mutex::default(),
            hint,
        }))
    }

    fn known(&self) -> MutexGuard<'_, Known<T>> {
        self.known.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the last credentials, or why there are none.
    fn last(&self, known: &Known<T>) -> object_store::Result<Arc<T>> {
        known.last.clone().ok_or_else(|| {
            let why = known.failed.as_ref().map_or("", |(_, why)| why);
            object_store::Error::Unauthenticated {
                path: String::new(),
                source: format!("{NOBODY}{} ({why})", self.hint).into(),
            }
        })
    }
}

impl<T: Send + Sync> Renew for Asked<T> {
    fn renew(&self, sent: Instant) -> bool {
        self.renewals.may(sent, || {
            // What it is made of has not changed; if it cannot be made, the present one goes on.
            if let Ok(service) = (self.make)() {
                let mut known = self.known();
                known.service = service;
                known.failed = None;
            }
        })
    }
}

impl<T: Send + Sync> CredentialProvider for Asked<T> {
    type Credential = T;

    fn get_credential<'life, 'async_trait>(
        &'life self,
    ) -> Pin<Box<dyn Future<Output = object_store::Result<Arc<T>>> + Send + 'async_trait>>
    where
        'life: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move {
            let _turn = self.turn.lock().await;
            let service = {
                let known = self.known();
                match &known.failed {
                    Some((at, _)) if at.elapsed() < QUIET => return self.last(&known),
                    _ => known.service.clone(),
                }
            };
            let given = service.get_credential().await;
            let mut known = self.known();
            match given {
                Ok(given) => {
                    known.last = Some(given.clone());
                    known.failed = None;
                    Ok(given)
                }
                Err(e) => {
                    known.failed = Some((Instant::now(), e.to_string()));
                    self.last(&known)
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_given_up_once_for_all_who_were_refused() {
        let renewals = Renewals::default();
        let mut count = 0;
        let sent = Instant::now();
        assert!(renewals.may(sent, || count += 1));
        assert!(renewals.may(sent, || count += 1), "sent before that");
        let later = Instant::now();
        assert!(
            !renewals.may(later, || count += 1),
            "sent with the new ones"
        );
        assert_eq!(count, 1);
    }
}
