//! The outcome for an object that cannot be shown.

use npyfs_base::error::{Error, ErrorKind};

/// The reason why an object is left out.
#[derive(Debug)]
pub(in crate::views) enum Unfit {
    /// It would come back wrong: it is left out as long as it has this version.
    LeftOut(String),
    /// The answer could not be determined now.
    Unknown(Error),
}

impl From<Error> for Unfit {
    fn from(error: Error) -> Self {
        match error.is_passing() || error.kind == ErrorKind::Stale {
            true => Self::Unknown(error),
            false => Self::LeftOut(error.message),
        }
    }
}

impl From<Unfit> for Error {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::LeftOut(why) => Self::damaged(why),
            Unfit::Unknown(error) => error,
        }
    }
}

/// Separates a verdict on an object, an error of which is the reason to leave the object out, from the failure to reach
/// one.
pub(in crate::views) fn verdict<T>(judged: Result<T, Unfit>) -> Result<Result<T, String>, Error> {
    match judged {
        Ok(fit) => Ok(Ok(fit)),
        Err(Unfit::LeftOut(why)) => Ok(Err(why)),
        Err(Unfit::Unknown(e)) => Err(e),
    }
}

/// Leaves an object out for a reason.
pub(in crate::views) fn left_out<T>(why: impl Into<String>) -> Result<T, Unfit> {
    Err(Unfit::LeftOut(why.into()))
}
