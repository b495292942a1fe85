"""ReFrame's configuration for a machine without a batch system: everything runs where reframe is started, by Open MPI's
mpirun. A site has a configuration of its own already; what the test needs of it are the tags `cpu` or `gpu` below."""

site_configuration = {
    "systems": [{
        "name": "local",
        "descr": "this machine",
        "hostnames": [".*"],
        "modules_system": "lmod",
        "partitions": [{
            "name": "default",
            "scheduler": "local",
            "launcher": "mpirun",
            "environs": ["default"],
            "max_jobs": 1,
        }],
    }],
    "environments": [{"name": "default"}],
}
