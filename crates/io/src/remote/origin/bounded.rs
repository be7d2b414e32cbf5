//! Response bodies with a limit on their bytes.
//!
//! Neither the announced length of a body nor its end is trusted. Bodies other than parts of an object (listings,
//! errors, credentials) also share a common limit.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};
use object_store::client::{HttpError, HttpErrorKind, HttpResponse, HttpResponseBody};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RANGE};

/// The most bytes of a response that is not part of an object. The longest listings have some 10 MiB.
const LARGEST: u64 = 32 << 20;

/// The most bytes of an error response.
const LARGEST_ERROR: u64 = 1 << 20;

/// The most bytes of such responses that arrive at the same time.
const LARGEST_TOGETHER: u64 = 128 << 20;

/// Bytes of such responses that have arrived and whose bodies are still being read.
static TOGETHER: AtomicU64 = AtomicU64::new(0);

/// A body and its limit.
struct Bounded {
    body: HttpResponseBody,
    most: u64,
    arrived: u64,
    /// Bytes that count towards the common limit; `None` for a part of an object.
    counted: Option<u64>,
}

/// Limits the body of a response: to `asked` bytes for a part of an object, otherwise to the limits above.
pub(super) fn bounded(answer: HttpResponse, asked: Option<u64>) -> HttpResponse {
    let (head, body) = answer.into_parts();
    let (most, counted) = match asked {
        _ if !head.status.is_success() => (LARGEST_ERROR, Some(0)),
        Some(asked) if head.status == StatusCode::PARTIAL_CONTENT => (asked, None),
        _ => (LARGEST, Some(0)),
    };
    let body = Bounded {
        body,
        most,
        arrived: 0,
        counted,
    };
    HttpResponse::from_parts(head, HttpResponseBody::new(body))
}

/// Returns the length of the range that a request asks for.
pub(super) fn length(asked: &HeaderMap) -> Option<u64> {
    let range = asked.get(RANGE)?.to_str().ok()?;
    let (start, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (start, last): (u64, u64) = (start.parse().ok()?, last.parse().ok()?);
    last.checked_sub(start)?.checked_add(1)
}

impl Bounded {
    /// Counts bytes that arrived; fails if they exceed a limit.
    fn add(&mut self, more: u64) -> Result<(), String> {
        self.arrived = self.arrived.saturating_add(more);
        if self.arrived > self.most {
            return Err(format!("more than {} bytes arrived", self.most));
        }
        if let Some(counted) = &mut self.counted {
            *counted = counted.saturating_add(more);
            let together = TOGETHER.fetch_add(more, Ordering::Relaxed);
            if together.saturating_add(more) > LARGEST_TOGETHER {
                return Err("too many long answers arrive at the same time".to_owned());
            }
        }
        Ok(())
    }
}

impl Body for Bounded {
    type Data = <HttpResponseBody as Body>::Data;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, HttpError>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)?) else {
            return Poll::Ready(None);
        };
        let more = frame.data_ref().map_or(0, |data| data.len() as u64);
        Poll::Ready(Some(match self.add(more) {
            Ok(()) => Ok(frame),
            Err(why) => {
                let why = std::io::Error::other(why);
                Err(HttpError::new(HttpErrorKind::Decode, why))
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // The length of a part of an object is known; no other length is trusted.
        let mut hint = SizeHint::new();
        if self.counted.is_none() {
            hint.set_upper(self.most);
        }
        hint
    }
}

impl Drop for Bounded {
    fn drop(&mut self) {
        TOGETHER.fetch_sub(self.counted.unwrap_or(0), Ordering::Relaxed);
    }
}
