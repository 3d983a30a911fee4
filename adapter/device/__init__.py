"""Where tensors live: views on mapped files, devices made once when asked, modules built on meta and filled."""
