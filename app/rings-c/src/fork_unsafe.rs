//! Calls a function in each child process of `fork`.

/// Makes each later `fork` call `function` in the child process. Returns false if the process has
/// no memory for this registration.
pub fn call_in_child(function: extern "C" fn()) -> bool {
    // SAFETY: the function has the right type, and exists as long as the program.
    unsafe { libc::pthread_atfork(None, None, Some(function_of(function))) == 0 }
}

/// Converts the function to the type that `pthread_atfork` takes.
fn function_of(function: extern "C" fn()) -> unsafe extern "C" fn() {
    function
}
